// Renders each dashboard of a file in both themes: `node show.mjs BUILT BOARDS.json INTO REPORT.json`. Writes the
// pictures to INTO/UID-THEME.png, and a report of the texts and values on each page to REPORT.json.
import { spawn } from 'node:child_process';
import { createReadStream, existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { extname, join, normalize } from 'node:path';

const [built, file, into, out] = process.argv.slice(2);
const boards = JSON.parse(readFileSync(file, 'utf8'));

const WIDTH = 1280;
// One unit of Grafana's grid is 30 pixels high, with gaps of 8 pixels.
const height = ({ dashboard }) => 72 + 38 * Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
// The timeout of the browser, in milliseconds.
const PATIENCE = 60_000;

const TYPES = { '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' };
const reports = new Map();

function page(index, theme) {
  const given = JSON.stringify({ ...boards[index], theme, width: WIDTH }).replaceAll('<', '\\u003c');
  return `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/page.css">
<body style="margin:0"><div id="root"></div>
<script>window.__grafana_public_path__ = '/public/'; window.GIVEN = ${given}</script><script src="/page.js"></script>`;
}

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, 'http://localhost');
  const [, index, theme, end] = /^\/(\d+)\/(dark|light)\/(report)?$/.exec(pathname) ?? [];
  const key = `${index}/${theme}`;
  if (end) {
    let body = '';
    request.on('data', (part) => (body += part));
    request.on('end', () => response.end(void reports.set(key, JSON.parse(body))));
  } else if (index) {
    response.setHeader('content-type', 'text/html');
    response.end(page(Number(index), theme));
  } else {
    const asked = join(built, normalize(pathname));
    if (!existsSync(asked) || !statSync(asked).isFile()) return response.writeHead(404).end();
    response.setHeader('content-type', TYPES[extname(asked)] ?? 'application/octet-stream');
    createReadStream(asked).pipe(response);
  }
});

// Chromium always exits with 0, so only the report of the page counts.
function show(index, theme) {
  const profile = mkdtempSync(join(tmpdir(), 'weir-panels-'));
  const { uid } = boards[index].dashboard;
  const picture = join(into, `${uid}-${theme}.png`);
  const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run', '--disable-extensions',
    '--disable-background-networking', '--hide-scrollbars', '--force-device-scale-factor=1', `--user-data-dir=${profile}`,
    `--window-size=${WIDTH},${height(boards[index])}`, '--virtual-time-budget=20000', `--screenshot=${picture}`,
    `http://127.0.0.1:${server.address().port}/${index}/${theme}/`];
  return new Promise((resolve, reject) => {
    const browser = spawn('chromium', flags, { stdio: ['ignore', 'ignore', 'pipe'], timeout: PATIENCE });
    let said = '';
    browser.stderr.on('data', (part) => (said += part));
    browser.on('error', reject);
    browser.on('close', (code) => {
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
      const report = reports.get(`${index}/${theme}`);
      if (!report) return reject(new Error(`${uid}, ${theme}: Chromium ended with ${code}, and the page reported nothing:\n${said}`));
      // These four bytes of a PNG are its height.
      const drawn = readFileSync(picture).readUInt32BE(20);
      if (drawn !== report.height) return reject(new Error(`${uid}, ${theme}: the picture is ${drawn} pixels high, the page ${report.height}`));
      resolve({ uid, theme, ...report });
    });
  });
}

server.listen(0, '127.0.0.1', async () => {
  try {
    const shown = [];
    // Both themes run at the same time.
    for (const index of boards.keys()) shown.push(...(await Promise.all(['light', 'dark'].map((theme) => show(index, theme)))));
    writeFileSync(out, JSON.stringify(shown));
  } catch (error) {
    console.error(String(error.message));
    process.exitCode = 1;
  } finally {
    server.close();
  }
});
