// The app of seed 003: Koa, alone or with a limiter of its own language. It records when each admitted request arrives,
// so that the benchmark can compare the admissions with the limit.
'use strict'

const http = require('node:http')
const Koa = require('koa')
const Redis = require('ioredis')
const ratelimit = require('koa-ratelimit')

const { WEIR_PORT, WEIR_LIMITER, WEIR_REDIS, WEIR_LIMITS } = process.env

// The limits by path: requests in each period, and the period in milliseconds.
const limits = JSON.parse(WEIR_LIMITS)
const id = (ctx) => ctx.get('x-key')

// Microseconds of the clock that all processes of this machine share.
const micros = () => Number((process.hrtime.bigint() + 999n) / 1000n)
let since = micros()
let admitted = []

// Charges a bucket, and returns its tokens, which can be negative. The clock is the one of Redis.
const BUCKET = `
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local requests, millis, used = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local stored = redis.call('HMGET', KEYS[1], 'tokens', 'at')
  local tokens, at = tonumber(stored[1] or requests), tonumber(stored[2] or now)
  tokens = math.min(requests, tokens + (now - at) * requests / (millis * 1000)) - used
  redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
  redis.call('PEXPIRE', KEYS[1], 2 * millis)
  return tostring(tokens)`
const SYNC = 2000

// Counts locally and synchronizes every two seconds, as koa-grounded does: a new key asks Redis once, and then each
// process decides with the tokens that it believes to be left.
function optimistic (redis, path, { requests, millis }) {
  redis.defineCommand('bucket', { numberOfKeys: 1, lua: BUCKET })
  const known = new Map()
  const sync = async (key, entry) => {
    const used = entry.used
    entry.used = 0
    const left = Number(await redis.bucket(`optimistic:${path}:${key}`, requests, millis, used))
    entry.tokens = left - entry.used
    entry.at = performance.now()
    return entry
  }
  setInterval(() => {
    for (const [key, asked] of known) {
      asked.then((entry) => entry.used > 0 || entry.tokens < 1 ? sync(key, entry) : known.delete(key))
    }
  }, SYNC)
  return async (ctx, next) => {
    const key = id(ctx)
    if (!known.has(key)) known.set(key, sync(key, { used: 0 }))
    const entry = await known.get(key)
    const now = performance.now()
    entry.tokens = Math.min(requests, entry.tokens + (now - entry.at) * requests / millis)
    entry.at = now
    if (entry.tokens < 1) {
      ctx.status = 429
      ctx.body = 'Too many requests'
      return
    }
    entry.tokens -= 1
    entry.used += 1
    await next()
  }
}

const middlewares = {
  none: () => (ctx, next) => next(),
  'koa-ratelimit': (redis, path, { requests, millis }) => ratelimit({
    driver: 'redis', db: redis, id, max: requests, duration: millis, namespace: path
  }),
  optimistic
}

const redis = WEIR_LIMITER === 'none' ? undefined : new Redis(WEIR_REDIS)
const byPath = new Map(Object.entries(limits).map(([path, limit]) => [path, middlewares[WEIR_LIMITER](redis, path, limit)]))

const app = new Koa()
app.use((ctx, next) => byPath.get(ctx.path)(ctx, next))
app.use((ctx) => {
  admitted.push(micros())
  ctx.body = 'Pong!'
})

// The benchmark asks the app directly, never through a limiter.
function control (url, res) {
  if (url === '/control/start') {
    since = micros()
    admitted = []
  }
  const body = JSON.stringify({ since, admitted })
  res.setHeader('content-length', Buffer.byteLength(body))
  res.end(body)
}

const serve = app.callback()
const server = http.createServer((req, res) => req.url.startsWith('/control/') ? control(req.url, res) : serve(req, res))
// Longer than a round of all contenders.
server.keepAliveTimeout = 600_000
server.listen({ host: '127.0.0.1', port: Number(WEIR_PORT), backlog: 4096 })
