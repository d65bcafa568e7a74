// Reports the content of the page. Graphs are drawn on canvases, so the report only counts them. All other content comes
// from the document.
import * as D from '@grafana/data';
import { given, theme } from './panels';

const all = <T extends Element>(within: ParentNode, selector: string) => [...within.querySelectorAll<T>(selector)];
const text = (element: Element) => (element.textContent ?? '').trim();

// Finds boxes that scroll and texts that are cut off.
function overflows(panel: Element): string[] {
  const boxes = all<HTMLElement>(panel, '*').filter((box) => {
    const { overflowX, overflowY, textOverflow } = getComputedStyle(box);
    const tall = /auto|scroll/.test(overflowY) && box.scrollHeight > box.clientHeight + 1;
    const wide = (/auto|scroll/.test(overflowX) || textOverflow === 'ellipsis') && box.scrollWidth > box.clientWidth + 1;
    return tall || wide;
  });
  return boxes.map((box) => text(box).slice(0, 80));
}

// In lists and in tables, the icon of a series is in front of its name.
function legend(panel: Element) {
  return all<HTMLElement>(panel, '[data-testid="series-icon"]').map((icon) => {
    const entry = icon.closest('tr') ?? icon.parentElement!.parentElement!;
    return { name: text(entry.querySelector('td:nth-child(2)') ?? entry), colour: css(icon.style.background) };
  });
}

export function report(errors: string[]) {
  const panels = given.dashboard.panels.filter(({ type }: any) => type !== 'row').map((panel: any) => {
    const shown = document.querySelector(`[data-panel="${panel.id}"]`)!;
    return {
      title: panel.title,
      empty: shown.querySelector('[data-empty]')?.getAttribute('data-empty') ?? null,
      canvases: all(shown, 'canvas').length,
      rows: all(shown, '[role="row"]').map(text),
      values: all<HTMLElement>(shown, '[data-number]').map(({ dataset }) => ({ number: Number(dataset.number), title: dataset.title, colour: css(dataset.color!) })),
      legend: legend(shown),
      overflows: overflows(shown),
      unknownUnit: panel.fieldConfig.defaults.unit && !KNOWN.has(panel.fieldConfig.defaults.unit) ? panel.fieldConfig.defaults.unit : null,
    };
  });
  const { height } = document.querySelector('#root')!.getBoundingClientRect();
  return { panels, errors, height, colours: colours() };
}

// Returns the colour in the browser's own format.
function css(color: string): string {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = color;
  const { color: written } = getComputedStyle(probe);
  probe.remove();
  return written;
}

// The colours of thresholds and of series with fixed colours.
function colours(): Record<string, string> {
  const names = given.dashboard.panels.flatMap(({ fieldConfig }: any) => {
    const fixed = (fieldConfig?.overrides ?? []).flatMap(({ properties }: any) => properties.map(({ value }: any) => value.fixedColor));
    return [...fixed, ...(fieldConfig?.defaults.thresholds.steps ?? []).map(({ color }: any) => color)];
  });
  return Object.fromEntries([...new Set<string>(names)].map((name) => [name, css(theme.visualization.getColorByName(name))]));
}

const KNOWN = new Set(D.getValueFormats().flatMap(({ submenu }) => submenu!.map(({ value }) => value)));
