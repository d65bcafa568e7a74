// Converts responses of Prometheus to data frames, as Grafana's data source does.
import * as D from '@grafana/data';

type Any = any;

const labelled = (format: string, labels: Record<string, string>) => format.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? '');
const number = (text: string) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

function frame(target: Any, series: Any, step: number): D.DataFrame {
  const points: [number, string][] = series.values ?? [series.value];
  const name = labelled(target.legendFormat, series.metric);
  const time = { name: 'Time', type: D.FieldType.time, config: { interval: step * 1000 }, values: points.map(([at]) => at * 1000) };
  const value = { name: 'Value', type: D.FieldType.number, labels: series.metric, config: { displayNameFromDS: name }, values: points.map(([, text]) => number(text)) };
  const type = series.values ? D.DataFrameType.TimeSeriesMulti : D.DataFrameType.NumericMulti;
  return { refId: target.refId, name, meta: { type }, length: points.length, fields: [time, value] };
}

// With `format: table`, each label has a column, and the last column is the value.
function tableFrame(target: Any, series: Any[]): D.DataFrame {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const fields: D.Field[] = [
    { name: 'Time', type: D.FieldType.time, config: {}, values: series.map(({ value }) => value[0] * 1000) },
    ...labels.map((label) => ({ name: label, type: D.FieldType.string, config: { filterable: true }, values: series.map(({ metric }) => metric[label] ?? '') })),
    { name: 'Value', type: D.FieldType.number, config: {}, values: series.map(({ value }) => number(value[1])) },
  ];
  return { refId: target.refId, meta: { type: D.DataFrameType.NumericLong }, length: series.length, fields };
}

/** The keys of `answers` are panel and query: `7/A`. */
export function frames(panel: Any, answers: Record<string, Any[]>, step: number, bar: number): D.DataFrame[] {
  // Bar charts set a separate interval.
  return panel.targets.flatMap((target: Any) => {
    const series = answers[`${panel.id}/${target.refId}`] ?? [];
    if (target.format !== 'table') return series.map((one) => frame(target, one, panel.interval ? bar : step));
    return series.length ? [tableFrame(target, series)] : [];
  });
}
