-- Implements *take* as model.rs defines it, as one atomic step of Redis or Valkey.
--
-- KEYS[1]  the counter
-- ARGV[1]  the caller's limits: "id strategy requests period burst debt,..."
-- ARGV[2]  "stamp requests cost patience prefetch guard lookahead owed"
-- ARGV[3]  the level that the caller has seen: "a b c" for each limit, or empty
-- ARGV[4]  the seats that are given back: "birth units", and "a b c" for each limit where they end; or empty
-- ARGV[5]  the ban of the key: "length change ago seen", with change 0 (keep), 1 (start) or 2 (lift); or empty
--
-- Numbers are doubles, which are exact for whole numbers below 2^53. If a product can be larger, `mul` computes it in
-- two parts. The value is one line of text (value.rs). After the line come the times of logs, in rings of 8 bytes each.

local key = KEYS[1]
local time = redis.call('TIME')
local call, format, gmatch = redis.call, string.format, string.gmatch
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local DAY = 86400000000
local HEADER = 1328
local HALF = 67108864

local function numbers(text)
  local list = {}
  for word in gmatch(text, '%d+') do list[#list + 1] = tonumber(word) end
  return list
end

local function parse(text)
  local limits, count = {}, 0
  for id, strategy, requests, period, burst, debt in gmatch(text, '(%d+) (%d) (%d+) (%d+) (%d+) (%d+)') do
    requests, period, burst = tonumber(requests), tonumber(period), tonumber(burst)
    local leaky = strategy == '5'
    local most = burst + debt + (leaky and 1 or 0)
    count = count + 1
    limits[count] = {
      id = id, requests = requests, period = period, burst = burst, a = 0, b = 0, c = 0,
      fixed = strategy == '0', counter = strategy == '1', log = strategy == '2', leaky = leaky,
      bucket = strategy >= '3', lends = strategy == '0' or strategy == '1' or strategy == '3' or strategy == '6',
      most = most, at_once = leaky and 1 or most, whole = floor(period / requests), rest = period % requests,
    }
  end
  return limits
end

-- Returns a * b as x and y, with a * b = x * 2^52 + y.
local function mul(a, b)
  local ah, al, bh, bl = floor(a / HALF), a % HALF, floor(b / HALF), b % HALF
  local middle = ah * bl + al * bh
  local low = al * bl + (middle % HALF) * HALF
  return ah * bh + floor(middle / HALF) + floor(low / (HALF * HALF)), low % (HALF * HALF)
end

-- Returns true if a * b <= c * d.
local function at_most(a, b, c, d)
  local x, y = mul(a, b)
  local z, w = mul(c, d)
  return x < z or (x == z and y <= w)
end

-- Returns a * b / c, rounded down.
local function scaled(a, b, c)
  local n = floor(a * b / c)
  while not at_most(n, c, a, b) do n = n - 1 end
  while at_most(n + 1, c, a, b) do n = n + 1 end
  return n
end

-- Buckets. A level is a number of whole microseconds, and of parts: one part is 1/requests of a microsecond.

local function after(l, us, parts, units)
  local sum = parts + units * l.rest
  return us + units * l.whole + floor(sum / l.requests), sum % l.requests
end

local function before(l, us, parts, units)
  local sum = parts - units * l.rest
  local carry = floor(sum / l.requests)
  return us - units * l.whole + carry, sum - carry * l.requests
end

local function minus(l, us, parts, us2, parts2)
  if parts < parts2 then return us - us2 - 1, parts + l.requests - parts2 end
  return us - us2, parts - parts2
end

local function earlier(us, parts, us2, parts2) return us < us2 or (us == us2 and parts < parts2) end

local function capacity(l) return after(l, 0, 0, l.at_once) end

local function rounded_up(us, parts) return parts > 0 and us + 1 or us end

-- Returns true if this many units fit between two levels.
local function within(l, us, parts, us2, parts2, units)
  local u, p = after(l, us, parts, units)
  return u < us2 or (u == us2 and p <= parts2)
end

-- Returns the number of whole units between two levels, at most `want`.
local function units_to(l, us, parts, us2, parts2, want)
  if not within(l, us, parts, us2, parts2, 0) then return 0 end
  if want and within(l, us, parts, us2, parts2, want) then return want end
  local n = max(0, floor((us2 - us) * l.requests / l.period))
  if want then n = min(n, want) end
  while not within(l, us, parts, us2, parts2, n) do n = n - 1 end
  while within(l, us, parts, us2, parts2, n + 1) do n = n + 1 end
  return n
end

-- Logs. `a` is the number of admissions so far. `b` is the length of the ring, which has the times of the last ones:
-- `requests`, or more after the limit was lowered.

local function place(limits)
  local offset = HEADER
  for _, l in ipairs(limits) do
    l.offset = offset
    if l.log then offset = offset + 8 * l.b end
  end
end

local function first(l) return max(0, l.a - l.b) end

local function entry(l, index)
  local at = l.offset + 8 * (index % l.b)
  local bytes = call('GETRANGE', key, at, at + 7)
  if #bytes < 8 then return 0 end
  return (struct.unpack('>I8', bytes))
end

-- Returns the index of the first admission whose time plus `more` is later than `t`.
local function later_than(l, more, t)
  local low, high = first(l), l.a
  while low < high do
    local middle = floor((low + high) / 2)
    if entry(l, middle) + more <= t then low = middle + 1 else high = middle end
  end
  return low
end

local function last(l) return l.a > 0 and entry(l, l.a - 1) or 0 end

local function write(l, index, units, at)
  local bytes = struct.pack('>I8', at)
  local slot = index % l.b
  local here = min(units, l.b - slot)
  call('SETRANGE', key, l.offset + 8 * slot, string.rep(bytes, here))
  if units > here then call('SETRANGE', key, l.offset, string.rep(bytes, units - here)) end
end

local function append(l, at, units)
  units = min(units, l.b)
  if units > 0 then
    write(l, l.a, units, at)
    l.a = l.a + units
  end
end

-- Caches its result, because several functions need it for the same state, and a search takes some dozen calls.
local function log_used(l, at)
  if l.used_at ~= at or l.used_a ~= l.a then
    l.used_at, l.used_a, l.used = at, l.a, l.a - later_than(l, l.period, at)
  end
  return l.used
end

-- Every strategy.

local function window(l) return now - now % l.period end

local function fresh(l)
  if l.log then l.a, l.b, l.c = 0, l.requests, 0
  elseif l.bucket then l.a, l.b, l.c = now, 0, 0
  else l.a, l.b, l.c = window(l), 0, 0 end
end

local function roll(l, to)
  if l.a < to then
    l.c = l.a + l.period == to and l.b or 0
    l.a, l.b = to, 0
  end
end

local function advance(l)
  if l.bucket then
    local us, parts = capacity(l)
    if earlier(now + DAY + us, parts, l.a, l.b) then l.a, l.b = now + us, parts end
    if l.a < now then l.a, l.b = now, 0 end
  elseif l.log then
    if last(l) > now + DAY then append(l, now, l.b) end
  elseif l.a > now + DAY then
    l.a, l.b, l.c = window(l), l.requests, 0
  elseif l.fixed then
    if l.a < window(l) then l.a, l.b = window(l), 0 end
  else
    roll(l, window(l))
  end
end

local function mark(l)
  if l.log then
    local at = max(last(l), now)
    return at, log_used(l, at), 0
  end
  return l.a, l.b, l.c
end

local function raise(l, a, b, c)
  if l.bucket then
    if earlier(l.a, l.b, a, b) then l.a, l.b = a, b end
  elseif l.fixed then
    if earlier(l.a, l.b, a, b) then l.a, l.b = a, b end
  elseif l.counter then
    local seen = {a = a, b = b, c = c, period = l.period}
    local latest = max(a, l.a)
    roll(seen, latest)
    roll(l, latest)
    l.b, l.c = max(l.b, seen.b), max(l.c, seen.c)
  elseif l.a < l.b or entry(l, first(l)) + l.period <= a then
    local known = max(0, later_than(l, 0, a) - later_than(l, l.period, a))
    append(l, max(last(l), a), max(0, b - known))
  end
end

local function give_back(l, a, b, units)
  if l.bucket then
    if l.a == a and l.b == b then
      l.a, l.b = before(l, l.a, l.b, units)
      if l.a < now then l.a, l.b = now, 0 end
    end
  elseif l.log then
    if last(l) == a and l.a > 0 then
      units = min(units, l.a - later_than(l, 0, a - 1))
      l.a = l.a - units
      write(l, l.a, units, 0) -- the replaced times were older than a period
    end
  elseif l.a == a then
    l.b = max(0, l.b - units)
  elseif l.counter and l.a == a + l.period then
    l.c = max(0, l.c - units)
  end
end

local function charge(l, units)
  if l.bucket then l.a, l.b = after(l, l.a, l.b, units)
  elseif l.log then append(l, max(last(l), now), units)
  else l.b = l.b + units end
end

local function owe(l, units)
  charge(l, units)
  if l.bucket then
    local us, parts = capacity(l)
    if earlier(now + DAY + us, parts, l.a, l.b) then l.a, l.b = now + DAY + us, parts end
  end
end

local function room(l)
  if l.fixed then return max(0, l.requests - l.b) end
  local rest = l.period - min(l.period, max(0, now - l.a))
  local weight = scaled(l.c, rest, l.period)
  if not at_most(l.c, rest, weight, l.period) then weight = weight + 1 end
  return max(0, l.requests - l.b - weight)
end

local function fits(l, want, cost, patience)
  if cost > l.most then return 0 end
  if l.leaky then
    if earlier(now + patience, 0, l.a, l.b) then return 0 end
    local slots = floor(units_to(l, l.a, l.b, now + patience, 0, want * cost) / cost) + 1
    local us, parts = after(l, now, 0, l.most)
    return min(slots, floor(units_to(l, l.a, l.b, us, parts, want * cost) / cost), want)
  elseif l.bucket then
    local us, parts = capacity(l)
    return floor(units_to(l, l.a, l.b, now + patience + us, parts, want * cost) / cost)
  elseif l.log then
    return floor(min(max(0, l.requests - log_used(l, now)), want * cost) / cost)
  end
  return min(want, floor(room(l) / cost))
end

-- Returns the number of seats that can be handed out in advance, at most `want`, and the mark at which they begin.
local function lendable(l, guard, lookahead, want)
  if l.bucket then
    local us, parts = l.a, l.b
    if earlier(us, parts, now + guard, 0) then us, parts = now + guard, 0 end
    local cap_us, cap_parts = capacity(l)
    local units = units_to(l, us, parts, now + lookahead + cap_us, cap_parts, 4 * want)
    return l.lends and floor(units / 4) or 0, us, parts, 0
  end
  local a, b, c = mark(l)
  return l.lends and floor(room(l) / 4) or 0, a, b, c
end

local function opens_after(l, room, previous)
  if previous <= room then return 0 end
  return l.period - min(l.period, scaled(room, l.period, previous))
end

-- Returns the time at which a request with this cost can go, or nil if it can never go.
local function opens(l, cost)
  local spare = l.most - cost
  if spare < 0 then return nil end
  local at = now
  if l.leaky then at = rounded_up(l.a, l.b)
  elseif l.bucket then
    local us, parts = after(l, l.a, l.b, cost)
    at = rounded_up(minus(l, us, parts, capacity(l)))
  elseif l.fixed then
    if l.b > spare then at = l.a + l.period end
  elseif l.counter then
    local this = l.b <= spare and opens_after(l, spare - l.b, l.c) or l.period
    at = l.a + (this < l.period and this or l.period + opens_after(l, spare, l.b))
  else
    local index = l.a - 1 - spare
    if index >= first(l) then at = entry(l, index) + l.period end
  end
  return max(at, now)
end

local function full_at(l)
  if l.bucket then return rounded_up(l.a, l.b) end
  if l.log then return l.a > 0 and last(l) + l.period or 0 end
  if l.fixed then return l.b > 0 and l.a + l.period or 0 end
  if l.b > 0 then return l.a + 2 * l.period end
  return l.c > 0 and l.a + l.period or 0
end

-- Changes of the terms: see state/change.rs.

local function used(l)
  if l.bucket then
    local units = units_to(l, now, 0, l.a, l.b)
    local us, parts = after(l, now, 0, units)
    return earlier(us, parts, l.a, l.b) and units + 1 or units
  end
  if l.log then return log_used(l, max(last(l), now)) end
  return l.fixed and l.b or l.b + l.c
end

local function moved(old, new)
  local units = units_to(old, now, 0, old.a, old.b)
  local us, parts = after(old, now, 0, units)
  us, parts = minus(old, old.a, old.b, us, parts)
  units = units + (new.leaky and 1 or new.burst) - (old.leaky and 1 or old.burst)
  if units < 0 then return now, 0 end
  if old.requests == new.requests and old.period == new.period then
    local us2, parts2 = after(new, now, 0, units)
    parts = parts + parts2
    return us + us2 + floor(parts / new.requests), parts % new.requests
  end
  local more = 0
  if us > 0 or parts > 0 then
    local share = (us + parts / old.requests) / (old.period / old.requests)
    more = ceil(share * (new.period / new.requests)) + 1
  end
  local us2, parts2 = after(new, now, 0, units)
  return us2 + more, parts2
end

-- Returns the times of a log that are still in the period, oldest first. With `all`, it returns every time of the ring.
local function times(l, all)
  local ring, list = call('GETRANGE', key, l.offset, l.offset + 8 * l.b - 1), {}
  local start = all and first(l) or later_than(l, l.period, max(last(l), now))
  for index = start, l.a - 1 do
    local at = 8 * (index % l.b) + 1
    list[#list + 1] = at + 7 <= #ring and struct.unpack('>I8', ring, at) or 0
  end
  return list
end

-- Appends these times.
local function restore(l, list)
  local bytes = {}
  for index = 1, #list do bytes[index] = struct.pack('>I8', list[index]) end
  local slot = l.a % l.b
  local here = min(#bytes, l.b - slot)
  if here > 0 then call('SETRANGE', key, l.offset + 8 * slot, table.concat(bytes, '', 1, here)) end
  if #bytes > here then call('SETRANGE', key, l.offset, table.concat(bytes, '', here + 1)) end
  l.a = l.a + #bytes
end

local function change(olds, news)
  local logs, counts, pairs_of = {}, {}, {}
  for _, old in ipairs(olds) do advance(old) end
  for i, new in ipairs(news) do
    fresh(new)
    for _, old in ipairs(olds) do
      if old.id == new.id then pairs_of[i] = old end
    end
    local old = pairs_of[i]
    if old then counts[i] = used(old) end
    if old and old.log and new.log then
      local is_same = old.requests == new.requests
      logs[i] = times(old, is_same)
      if is_same then new.a, new.b = old.a - #logs[i], old.b
      else new.b = max(new.requests, #logs[i]) end
    end
  end
  place(news)
  call('DEL', key) -- frees longer rings of the old terms
  for i, new in ipairs(news) do
    local old, count = pairs_of[i], counts[i]
    if not old then -- a new limit: it has no state
    elseif old.bucket and new.bucket then new.a, new.b = moved(old, new)
    elseif old.fixed and new.fixed and old.period == new.period then new.a, new.b = old.a, old.b
    elseif old.counter and new.counter and old.period == new.period then new.a, new.b, new.c = old.a, old.b, old.c
    elseif logs[i] then restore(new, logs[i])
    elseif new.bucket then
      local left = max(0, old.requests - count)
      new.a, new.b = after(new, now, 0, max(0, new.at_once - left))
    elseif new.log then append(new, now, count)
    else new.b = count end
  end
end

-- The question.

local ask_stamp, requests, cost, patience, prefetch, guard, lookahead, owed = string.match(ARGV[2],
  '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
ask_stamp, requests, cost, patience = tonumber(ask_stamp), tonumber(requests), tonumber(cost), tonumber(patience)
prefetch, guard, lookahead, owed = tonumber(prefetch), tonumber(guard), tonumber(lookahead), tonumber(owed)

local stored = call('GETRANGE', key, 0, HEADER - 1)
local text, stamp, birth, terms, marks, ban = string.match(stored, '^((%d+) (%d+)|([%d ,]+)|([%d ]+)|?([%d ]*)\n)')
local limits, older = nil, false
local since, length = 0, 0
if text and ban ~= '' then
  local list = numbers(ban)
  since, length = list[1], list[2]
end
if text then
  stamp, birth, limits = tonumber(stamp), tonumber(birth), parse(terms)
  local i = 0
  for a, b, c in gmatch(marks, '(%d+) (%d+) (%d+)') do
    i = i + 1
    limits[i].a, limits[i].b, limits[i].c = tonumber(a), tonumber(b), tonumber(c)
  end
  place(limits)
  if stamp < ask_stamp then
    local news = parse(ARGV[1])
    change(limits, news)
    stamp, limits, terms, text = ask_stamp, news, ARGV[1], nil
  else
    older = stamp ~= ask_stamp or terms ~= ARGV[1]
  end
else
  if stored ~= '' then call('DEL', key) end
  stamp, birth, limits, terms = ask_stamp, now, parse(ARGV[1]), ARGV[1]
  for _, l in ipairs(limits) do fresh(l) end
  place(limits)
end

if not older and ARGV[3] ~= '' then
  local seen = numbers(ARGV[3])
  if #seen == 3 * #limits then
    for i, l in ipairs(limits) do raise(l, seen[3 * i - 2], seen[3 * i - 1], seen[3 * i]) end
  end
end
for _, l in ipairs(limits) do advance(l) end
if not older and ARGV[4] ~= '' then
  local back = numbers(ARGV[4])
  if #back == 2 + 3 * #limits and back[1] == birth then
    for i, l in ipairs(limits) do give_back(l, back[3 * i], back[3 * i + 1], back[2]) end
  end
end
if owed > 0 then
  for _, l in ipairs(limits) do owe(l, owed) end
end

-- The ban: see ban.rs.
local banned = false
if ARGV[5] ~= '' then
  local list = numbers(ARGV[5])
  local change, ago = list[2], list[3]
  since, length = max(since, list[4]), list[1]
  local function in_force(at) return at > 0 and min(at, now) + length > now end
  if not in_force(since) then since = change == 1 and max(0, now - ago) or 0 end
  banned = change ~= 2 and in_force(since)
  since = banned and min(since, now) or 0
elseif not older then
  since = 0
end

-- The answer. `note` adds three numbers for each limit to one of three lists: served, lent and level.
local reply, count = {0, 0, 0, 0, 0, 0, 0, banned and since or 0}, #limits
local function note(place, i, a, b, c)
  local at = 8 + 3 * (place * count + i) - 3
  reply[at + 1], reply[at + 2], reply[at + 3] = a, b, c
end

local granted = requests
for i, l in ipairs(limits) do
  note(0, i, mark(l))
  granted = min(granted, fits(l, requests, cost, patience))
end
if banned then granted = 0 end
if granted > 0 then
  for _, l in ipairs(limits) do charge(l, granted * cost) end
end
local next_at = 0
if banned and requests > 0 then
  next_at = since + length
elseif granted < requests then
  for _, l in ipairs(limits) do
    local at = opens(l, cost)
    if not at then next_at = -1 elseif next_at >= 0 then next_at = max(next_at, at) end
  end
end

local wanted = granted == requests and not older and not banned and prefetch or 0
local prefetched = wanted
for i, l in ipairs(limits) do
  local free, a, b, c = lendable(l, guard, lookahead, wanted)
  note(1, i, a, b, c)
  prefetched = min(prefetched, free)
end
if prefetched > 0 then
  for i, l in ipairs(limits) do
    local at = 8 + 3 * (count + i) - 3
    if l.bucket then l.a, l.b = reply[at + 1], reply[at + 2] end
    charge(l, prefetched)
  end
end

-- Writes the value if it has changed. A key at full credit needs no value.

local full, has_log, list = since > 0 and since + length or 0, false, {}
for i, l in ipairs(limits) do
  note(2, i, mark(l))
  full = max(full, full_at(l))
  has_log = has_log or l.log
  list[i] = format('%.0f %.0f %.0f', l.a, l.b, l.c)
end
local line = format('%.0f %.0f|', stamp, birth) .. terms .. '|' .. table.concat(list, ' ')
  .. (since > 0 and format('|%.0f %.0f', since, length) or '') .. '\n'
if full <= now then
  call('DEL', key)
elseif line ~= text then
  local until_ms = format('%.0f', ceil(full / 1000))
  if has_log then
    call('SETRANGE', key, 0, line .. string.rep(' ', HEADER - #line))
    call('PEXPIREAT', key, until_ms)
  else
    call('SET', key, line, 'PXAT', until_ms)
  end
end

reply[1], reply[2], reply[3], reply[4], reply[5], reply[6], reply[7] =
  granted, prefetched, now, birth, next_at, stamp, older and 1 or 0
if older then reply[9 + 9 * count] = terms end
return reply
