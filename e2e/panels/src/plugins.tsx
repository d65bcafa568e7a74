// Declares the standard field options, and the options of each kind of panel with their defaults. Grafana's core
// contains these declarations, but does not publish them. Grafana finds editors only by name, so one empty component replaces all of them.
import * as D from '@grafana/data';
import * as U from '@grafana/ui';

type Any = any;
const Editor = (() => null) as Any;

const EDITORS = ['text', 'number', 'slider', 'boolean', 'radio', 'select', 'unit', 'links', 'actions', 'stats-picker', 'strings', 'timezone',
  'fieldColor', 'color', 'multi-select', 'field-name', 'dashboard-uid', 'mappings', 'thresholds'];
D.standardEditorsRegistry.setInit(() => EDITORS.map((id) => ({ id, name: id, editor: Editor })));

const isNumber = (field: D.Field) => field.type === D.FieldType.number;
const standard = (id: string, process: Any, more: Any = {}) =>
  ({ id, path: id, name: id, editor: Editor, override: Editor, process, settings: {}, shouldApply: () => true, ...more });
D.standardFieldConfigEditorRegistry.setInit(() => [
  standard('unit', D.stringOverrideProcessor),
  standard('min', D.numberOverrideProcessor, { shouldApply: isNumber }),
  standard('max', D.numberOverrideProcessor, { shouldApply: isNumber }),
  standard('decimals', D.numberOverrideProcessor, { shouldApply: isNumber }),
  standard('fieldMinMax', D.booleanOverrideProcessor, { shouldApply: isNumber }),
  standard('displayName', D.displayNameOverrideProcessor, { settings: { expandTemplateVars: true } }),
  standard('color', D.identityOverrideProcessor),
  standard('noValue', D.stringOverrideProcessor),
  standard('links', D.dataLinksOverrideProcessor),
  standard('mappings', D.valueMappingsOverrideProcessor, { defaultValue: [] }),
  // Without other options, a panel turns red at 80.
  standard('thresholds', D.thresholdsOverrideProcessor,
    { defaultValue: { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] } }),
] as Any);

D.standardTransformersRegistry.setInit(() =>
  [D.standardTransformers.organizeFieldsTransformer].map((transformation) =>
    ({ id: transformation.id, name: transformation.name, transformation: async () => transformation, editor: Editor }) as Any));

const custom = (builder: Any, defaults: object) => {
  for (const [path, defaultValue] of Object.entries(defaults)) {
    builder.addCustomEditor({ id: path, path, name: path, defaultValue, editor: Editor, override: Editor,
      process: D.identityOverrideProcessor, shouldApply: (field: D.Field) => field.type !== D.FieldType.time });
  }
};

const timeseries = new D.PanelPlugin<Any, Any>(Editor)
  .setPanelOptions((builder: Any) => {
    U.commonOptionsBuilder.addTooltipOptions(builder);
    U.commonOptionsBuilder.addLegendOptions(builder);
  })
  .useFieldConfig({
    standardOptions: { color: { settings: { byValueSupport: true, bySeriesSupport: true }, defaultValue: { mode: D.FieldColorModeId.PaletteClassic } } } as Any,
    useCustomConfig: (builder: Any) => {
      custom(builder, { drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', barAlignment: 0,
        barWidthFactor: 0.6, spanNulls: false, insertNulls: false, showPoints: 'auto', showValues: false, pointSize: 5, lineStyle: undefined,
        transform: undefined, fillBelowTo: undefined, thresholdsStyle: { mode: 'off' } });
      U.commonOptionsBuilder.addStackingConfig(builder, { mode: 'none', group: 'A' } as Any);
      U.commonOptionsBuilder.addAxisConfig(builder, { axisGridShow: true, axisCenteredZero: false, axisBorderShow: false } as Any);
      U.commonOptionsBuilder.addHideFrom(builder);
    },
  });

const stat = new D.PanelPlugin<Any>(Editor).useFieldConfig().setPanelOptions((builder: Any) =>
  custom(builder, { reduceOptions: { values: false, calcs: ['lastNotNull'], fields: '' }, orientation: 'auto', textMode: 'auto', wideLayout: true,
    colorMode: 'value', graphMode: 'area', justifyMode: 'auto', showPercentChange: false, percentChangeColorMode: 'standard' }));

const table = new D.PanelPlugin<Any, Any>(Editor)
  .useFieldConfig({ useCustomConfig: (builder: Any) => custom(builder, { align: 'auto', cellOptions: { type: 'auto' }, inspect: false, width: undefined }) })
  .setPanelOptions((builder: Any) => custom(builder, { showHeader: true, cellHeight: 'sm', sortBy: [] }));

export const plugins: Record<string, D.PanelPlugin> = { timeseries, stat, table } as Any;
