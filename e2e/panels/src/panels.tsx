// Builds each kind of panel from published components, as Grafana's core does.
import * as D from '@grafana/data';
import * as U from '@grafana/ui';
import { useEffect, useMemo, useState } from 'react';
import { lastValueFrom } from 'rxjs';
import { frames } from './answers';
import { plugins } from './plugins';

type Any = any;
export const given = (window as Any).GIVEN;
export const theme = D.createTheme({ colors: { mode: given.theme } });
export const replace = (text = '') => text.replace(/\$\{?(\w+)\}?/g, (whole, name) => given.chosen[name] ?? whole);

const timeZone = 'utc';
const timeRange: D.TimeRange = { from: D.dateTime(given.start * 1000), to: D.dateTime(given.end * 1000), raw: given.dashboard.time };

function prepare(panel: Any, data: D.DataFrame[]) {
  const plugin = plugins[panel.type];
  if (!plugin) throw new Error(`no component for panels of type ${panel.type}`);
  const { options, fieldConfig } = D.getPanelOptionsWithDefaults(
    { plugin, currentOptions: panel.options, currentFieldConfig: panel.fieldConfig, isAfterPluginChange: false });
  const shown = D.applyFieldOverrides({ data, fieldConfig, theme, timeZone, replaceVariables: replace, fieldConfigRegistry: plugin.fieldConfigRegistry });
  return { options: options as Any, fieldConfig, data: shown };
}

const finite = (field: D.Field) =>
  field.type === D.FieldType.number ? { ...field, values: field.values.map((value) => (Number.isFinite(value) ? value : null)) } : field;

function TimeSeries({ panel, data, width, height }: Any) {
  const prepared = prepare(panel, data);
  const gapped = prepared.data.map((frame) =>
    D.applyNullInsertThreshold({ frame: { ...frame, fields: frame.fields.map(finite) }, refFieldPseudoMin: timeRange.from.valueOf(), refFieldPseudoMax: timeRange.to.valueOf() }));
  return (
    <U.TimeSeries frames={gapped} structureRev={1} timeRange={timeRange} timeZone={timeZone} width={width} height={height}
      legend={prepared.options.legend} options={prepared.options}>
      {(config: Any) => <Annotations config={config} />}
    </U.TimeSeries>
  );
}

function Annotations({ config }: Any) {
  useMemo(() => config.addHook('draw', (plot: Any) => {
    for (const { at, color } of given.annotations) {
      const x = plot.valToPos(at * 1000, 'x', true);
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      plot.ctx.save();
      plot.ctx.strokeStyle = theme.visualization.getColorByName(color);
      plot.ctx.setLineDash([5, 5]);
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
      plot.ctx.restore();
    }
  }), [config]);
  return null;
}

function Stat({ panel, data, width, height }: Any) {
  const { options, fieldConfig, data: shown } = prepare(panel, data);
  const values = () => D.getFieldDisplayValues(
    { fieldConfig, reduceOptions: options.reduceOptions, replaceVariables: replace, theme, data: shown, sparkline: options.graphMode !== 'none', timeZone });
  return (
    <U.VizRepeater getValues={values} getAlignmentFactors={D.getDisplayValueAlignmentFactors} width={width} height={height} source={shown}
      itemSpacing={3} renderCounter={1} autoGrid orientation={options.orientation}
      renderValue={({ value, count, width, height, alignmentFactors, orientation }: Any) => (
        <div data-number={value.display.numeric} data-title={value.display.title} data-color={value.display.color}>
          <U.BigValue value={value.display} count={count} sparkline={value.sparkline} colorMode={options.colorMode} graphMode={options.graphMode}
            justifyMode={options.justifyMode} textMode={options.textMode} alignmentFactors={alignmentFactors} parentOrientation={orientation}
            text={options.text} width={width} height={height} theme={theme} disableWideLayout={!options.wideLayout}
            percentChangeColorMode={options.percentChangeColorMode} />
        </div>
      )} />
  );
}

function Table({ panel, data, width, height }: Any) {
  const [organized, setOrganized] = useState<D.DataFrame[]>();
  useEffect(() => void lastValueFrom(D.transformDataFrame(panel.transformations ?? [], data)).then(setOrganized), [panel, data]);
  if (!organized) return null;
  const { options, data: [frame] } = prepare(panel, organized);
  return <U.Table data={frame} width={width} height={height} noHeader={!options.showHeader} initialSortBy={options.sortBy} cellHeight={options.cellHeight} />;
}

const KINDS: Any = { timeseries: TimeSeries, stat: Stat, table: Table };

export function Panel({ panel, width, height }: Any) {
  const data = useMemo(() => frames(panel, given.answers, given.step, given.bar), [panel]);
  const Kind = KINDS[panel.type];
  if (!Kind) throw new Error(`no component for panels of type ${panel.type}`);
  if (data.length) return <Kind panel={panel} data={data} width={width} height={height} />;
  const said = panel.fieldConfig.defaults.noValue ?? 'No data';
  return (
    <div data-empty={said} style={{ height, display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center', color: theme.colors.text.secondary }}>
      {said}
    </div>
  );
}
