// Lays out one dashboard as Grafana does: 24 columns, units of 30 pixels, gaps of 8.
import * as D from '@grafana/data';
import * as U from '@grafana/ui';
import { Component } from 'react';
import { flushSync } from 'react-dom';
import { createRoot } from 'react-dom/client';
import { Panel, given, replace, theme } from './panels';
import { report } from './report';

type Any = any;
const { dashboard } = given;
const [GAP, UNIT, PADDING] = [8, 30, 16];
const column = (given.width - 2 * PADDING - 23 * GAP) / 24;
const span = (units: number, size: number) => units * size + (units - 1) * GAP;

const errors: string[] = [];
const complain = console.error;
console.error = (...said: Any[]) => {
  errors.push(said.map(String).join(' ').slice(0, 300));
  complain(...said);
};

class Guard extends Component<Any, Any> {
  state: Any = {};
  static getDerivedStateFromError(error: Error) { return { error }; }
  render() { return this.state.error ? <U.Alert title={String(this.state.error)} /> : this.props.children; }
}

function Place({ panel }: Any) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [span(w, column), span(h, UNIT)];
  const title = replace(panel.title);
  return (
    <div data-panel={panel.id} style={{ position: 'absolute', left: x * (column + GAP), top: y * (UNIT + GAP), width, height }}>
      {panel.type === 'row' ? (
        <div style={{ display: 'flex', alignItems: 'center', height, ...(theme.typography.h6 as Any) }}><U.Icon name="angle-down" />&nbsp;{title}</div>
      ) : (
        <U.PanelChrome title={title} description={panel.description} width={width} height={height} padding={panel.type === 'timeseries' ? 'md' : 'none'}>
          {(width: number, height: number) => <Guard><Panel panel={panel} width={width} height={height} /></Guard>}
        </U.PanelChrome>
      )}
    </div>
  );
}

function Page() {
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }: Any) => gridPos.y + gridPos.h));
  const variables = dashboard.templating.list.filter(({ type }: Any) => type !== 'datasource');
  return (
    <div style={{ width: given.width, padding: PADDING, background: theme.colors.background.canvas, boxSizing: 'border-box' }}>
      <div style={{ display: 'flex', gap: GAP, alignItems: 'center', height: 40, marginBottom: GAP }}>
        <U.Text element="h3">{dashboard.title}</U.Text>
        <span style={{ flex: 1 }} />
        {variables.map(({ name, label }: Any) => <U.Badge key={name} color="darkgrey" text={`${label}: ${given.chosen[name]}`} />)}
      </div>
      <div style={{ position: 'relative', height: span(bottom, UNIT) }}>
        {dashboard.panels.map((panel: Any) => <Place key={panel.id} panel={panel} />)}
      </div>
    </div>
  );
}

const Theme = D.ThemeContext as Any;
const root = createRoot(document.getElementById('root')!);
const draw = (page: Any) =>
  flushSync(() => root.render(<Theme.Provider value={theme}><U.GlobalStyles />{page}<U.PortalContainer /></Theme.Provider>));

// Panels draw in several steps. So the page reports what it shows when this has not changed for some time. Chromium's
// virtual time advances only when the page is idle.
const [LOOK, EQUAL] = [100, 10];
async function settled(): Promise<string> {
  for (let before = '', equal = 0; ; ) {
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    const now = JSON.stringify(report(errors));
    equal = now === before ? equal + 1 : 0;
    if (equal === EQUAL) return now;
    before = now;
  }
}

// A legend measures its names once, so it needs the font before. The global styles declare the font.
draw(null);
const { fontFamily, fontWeightRegular, fontWeightMedium } = theme.typography;
void Promise.all([fontWeightRegular, fontWeightMedium].map((weight) => document.fonts.load(`${weight} 14px ${fontFamily}`)))
  .then(() => draw(<Page />))
  .then(settled)
  .then((body) => fetch('report', { method: 'POST', body }));
