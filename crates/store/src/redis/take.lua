-- Implements *take* as model.rs defines it, as one atomic step of Redis or Valkey.
--
-- KEYS[1]  the counter
-- ARGV[1]  the caller's limits: id, strategy, requests, period, burst and debt of each limit
-- ARGV[2]  stamp, requests, cost, patience, prefetch, guard, lookahead, owed, credit
-- ARGV[3]  the level that the caller has seen: three numbers for each limit; or empty
-- ARGV[4]  the seats that are given back: birth and units, and three numbers for each limit where they end; or empty
-- ARGV[5]  the ban of the key: length, change (0: keep, 1: start, 2: lift), ago, seen; or empty
--
-- Arguments, the answer and the value are lists of doubles, which are exact for whole numbers below 2^53. If a product
-- can be larger, `mul` computes it in two parts.
--
-- The value is the number of limits in one byte; stamp, birth, and the beginning and the length of the ban; the limits
-- as in ARGV[1]; and three numbers for each limit. If the terms have changed, former limits can follow: their number in
-- one byte, the limits and three numbers for each. At HEADER begin the times of logs, in rings of 8 bytes each. Before
-- them are spaces. Older scripts ignore the former limits, and overwrite them.
--
-- Redis creates each function again in each call of the script. All functions together took a quarter of a call that
-- grants one unit. So the functions of a strategy are created only if a limit has this strategy.

local key, call = KEYS[1], redis.call
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local pack, read = struct.pack, struct.unpack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local DAY = 86400000000
local HEADER = 33 + 72 * 8
local MOST_KNOWN = 7 -- limits in a value with former limits: HEADER has room for them

-- Buckets. A level is a number of whole microseconds, and of parts: one part is 1/requests of a microsecond.
local function buckets()
  local kind = {}

  local function after(l, us, parts, units)
    local sum = parts + units * l.rest
    return us + units * l.whole + floor(sum / l.requests), sum % l.requests
  end

  local function earlier(us, parts, us2, parts2) return us < us2 or (us == us2 and parts < parts2) end

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

  kind.after, kind.units_to = after, units_to

  function kind.prepare(l)
    l.whole, l.rest = floor(l.period / l.requests), l.period % l.requests
    l.capacity_us, l.capacity_parts = after(l, 0, 0, l.at_once)
  end

  function kind.fresh(l) l.a, l.b, l.c = now, 0, 0 end

  function kind.advance(l)
    local us, parts = now + l.capacity_us, l.capacity_parts
    if earlier(us + DAY, parts, l.a, l.b) then l.a, l.b = us, parts end
    if l.a < now then l.a, l.b = now, 0 end
  end

  function kind.mark(l) return l.a, l.b, l.c end

  function kind.raise(l, a, b)
    if earlier(l.a, l.b, a, b) then l.a, l.b = a, b end
  end

  function kind.give_back(l, a, b, _, units)
    if l.a ~= a or l.b ~= b then return end
    local sum = b - units * l.rest
    local carry = floor(sum / l.requests)
    l.a, l.b = a - units * l.whole + carry, sum - carry * l.requests
    if l.a < now then l.a, l.b = now, 0 end
  end

  function kind.charge(l, units) l.a, l.b = after(l, l.a, l.b, units) end

  function kind.owe(l, units)
    l.a, l.b = after(l, l.a, l.b, units)
    local us, parts = now + DAY + l.capacity_us, l.capacity_parts
    if earlier(us, parts, l.a, l.b) then l.a, l.b = us, parts end
  end

  function kind.fits(l, want, cost, patience)
    if l.leaky then
      if earlier(now + patience, 0, l.a, l.b) then return 0 end
      local slots = floor(units_to(l, l.a, l.b, now + patience, 0, want * cost) / cost) + 1
      local us, parts = after(l, now, 0, l.most)
      return min(slots, floor(units_to(l, l.a, l.b, us, parts, want * cost) / cost), want)
    end
    local us = now + patience + l.capacity_us
    return floor(units_to(l, l.a, l.b, us, l.capacity_parts, want * cost) / cost)
  end

  -- Returns the number of seats that can be handed out in advance, at most `want`, and the mark at which they begin.
  function kind.lendable(l, guard, lookahead, want)
    local us, parts = l.a, l.b
    if earlier(us, parts, now + guard, 0) then us, parts = now + guard, 0 end
    if want == 0 or not l.lends then return 0, us, parts, 0 end
    local units = units_to(l, us, parts, now + lookahead + l.capacity_us, l.capacity_parts, 4 * want)
    return floor(units / 4), us, parts, 0
  end

  function kind.lend(l, us, parts, units) l.a, l.b = after(l, us, parts, units) end

  -- Returns the time at which a request with this cost can go.
  function kind.opens(l, cost)
    if l.leaky then return rounded_up(l.a, l.b) end
    local us, parts = after(l, l.a, l.b, cost)
    if parts < l.capacity_parts then us, parts = us - 1, parts + l.requests end
    return rounded_up(us - l.capacity_us, parts - l.capacity_parts)
  end

  function kind.full_at(l) return rounded_up(l.a, l.b) end

  -- Returns the units that are not free.
  function kind.used(l)
    local units = units_to(l, now, 0, l.a, l.b)
    local us, parts = after(l, now, 0, units)
    return earlier(us, parts, l.a, l.b) and units + 1 or units
  end

  return kind
end

-- Windows that begin at multiples of the period: `a` is the begin, and `b` the units of this window.
local function windows()
  local kind = {}

  local function window(l) return now - now % l.period end

  kind.window = window

  function kind.prepare() end

  function kind.fresh(l) l.a, l.b, l.c = window(l), 0, 0 end

  function kind.advance(l)
    if l.a > now + DAY then l.a, l.b, l.c = window(l), l.requests, 0
    elseif l.a < window(l) then l.a, l.b = window(l), 0 end
  end

  function kind.mark(l) return l.a, l.b, l.c end

  function kind.raise(l, a, b)
    if l.a < a or (l.a == a and l.b < b) then l.a, l.b = a, b end
  end

  function kind.give_back(l, a, _, _, units)
    if l.a == a then l.b = max(0, l.b - units) end
  end

  function kind.charge(l, units) l.b = l.b + units end

  kind.owe = kind.charge

  function kind.room(l) return max(0, l.requests - l.b) end

  function kind.fits(l, want, cost) return min(want, floor(kind.room(l) / cost)) end

  function kind.lendable(l) return floor(kind.room(l) / 4), l.a, l.b, l.c end

  function kind.lend(l, _, _, units) l.b = l.b + units end

  function kind.opens(l, cost) return l.b > l.most - cost and l.a + l.period or now end

  function kind.full_at(l) return l.b > 0 and l.a + l.period or 0 end

  function kind.used(l) return l.b end

  return kind
end

-- Windows that also count a part of the window before, whose units are `c`.
local function counters()
  local kind = windows()
  local window, give_back = kind.window, kind.give_back
  local HALF = 67108864

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

  local function roll(l, to)
    if l.a < to then
      l.c = l.a + l.period == to and l.b or 0
      l.a, l.b = to, 0
    end
  end

  function kind.advance(l)
    if l.a > now + DAY then l.a, l.b, l.c = window(l), l.requests, 0 else roll(l, window(l)) end
  end

  function kind.raise(l, a, b, c)
    local seen = {a = a, b = b, c = c, period = l.period}
    local latest = max(a, l.a)
    roll(seen, latest)
    roll(l, latest)
    l.b, l.c = max(l.b, seen.b), max(l.c, seen.c)
  end

  function kind.give_back(l, a, b, c, units)
    if l.a == a + l.period then l.c = max(0, l.c - units) else give_back(l, a, b, c, units) end
  end

  function kind.room(l)
    if l.c == 0 then return max(0, l.requests - l.b) end
    local rest = l.period - min(l.period, max(0, now - l.a))
    local weight = scaled(l.c, rest, l.period)
    if not at_most(l.c, rest, weight, l.period) then weight = weight + 1 end
    return max(0, l.requests - l.b - weight)
  end

  local function opens_after(l, room, previous)
    if previous <= room then return 0 end
    return l.period - min(l.period, scaled(room, l.period, previous))
  end

  function kind.opens(l, cost)
    local spare = l.most - cost
    local this = l.b <= spare and opens_after(l, spare - l.b, l.c) or l.period
    return l.a + (this < l.period and this or l.period + opens_after(l, spare, l.b))
  end

  function kind.full_at(l)
    if l.b > 0 then return l.a + 2 * l.period end
    return l.c > 0 and l.a + l.period or 0
  end

  function kind.used(l) return l.b + l.c end

  return kind
end

-- Logs. `a` is the number of admissions so far. `b` is the length of the ring, which has the times of the last ones:
-- `requests`, or more after the limit was lowered. `c` is the number of owed units of this period without a place in the
-- ring.
local function logs()
  local kind = {}

  local function first(l) return max(0, l.a - l.b) end

  local function entry(l, index)
    local at = l.offset + 8 * (index % l.b)
    local bytes = call('GETRANGE', key, at, at + 7)
    if #bytes < 8 then return 0 end
    return (read('>I8', bytes))
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
    local bytes = pack('>I8', at)
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

  local function drop_newest(l, units)
    if units > 0 then
      l.a = l.a - units
      write(l, l.a, units, 0) -- the replaced times were older than a period
    end
  end

  -- Caches its result, because several functions need it for the same state, and a search takes some dozen calls.
  local function used(l, at)
    if l.used_at ~= at or l.used_a ~= l.a then
      l.used_at, l.used_a, l.used = at, l.a, l.a - later_than(l, l.period, at)
    end
    return l.used
  end

  function kind.prepare() end

  function kind.fresh(l) l.a, l.b, l.c = 0, l.requests, 0 end

  function kind.advance(l)
    if last(l) > now + DAY then
      append(l, now, l.b)
      l.c = 0
    end
  end

  function kind.mark(l)
    local at = max(last(l), now)
    return at, used(l, at), 0
  end

  function kind.raise(l, a, b)
    if l.a < l.b or entry(l, first(l)) + l.period <= a then
      local known = max(0, later_than(l, 0, a) - later_than(l, l.period, a))
      append(l, max(last(l), a), max(0, b - known))
    end
  end

  function kind.give_back(l, a, _, _, units)
    if last(l) == a and l.a > 0 then
      drop_newest(l, min(units, l.a - later_than(l, 0, a - 1)))
    end
  end

  -- If the ring has a free place, all units without a place are older than a period.
  local function used_with_beyond(l, at)
    local units = used(l, at)
    if units < l.b then l.c = 0 end
    return units
  end

  function kind.forget_newest(l, units)
    local known = used_with_beyond(l, max(last(l), now))
    local beyond = min(units, l.c)
    l.c = l.c - beyond
    drop_newest(l, min(units - beyond, known))
  end

  function kind.charge(l, units)
    local at = max(last(l), now)
    local known = used_with_beyond(l, at)
    l.c = l.c + max(0, known + units - l.b)
    append(l, at, units)
  end

  kind.owe = kind.charge

  function kind.fits(l, want, cost) return floor(min(max(0, l.requests - used(l, now)), want * cost) / cost) end

  function kind.lendable(l) return 0, kind.mark(l) end

  function kind.opens(l, cost)
    local index = l.a - 1 - (l.most - cost)
    return index >= first(l) and entry(l, index) + l.period or now
  end

  function kind.full_at(l) return l.a > 0 and last(l) + l.period or 0 end

  function kind.used(l) return used(l, max(last(l), now)) end

  -- Appends units that were admitted at this time, at most a whole ring.
  kind.append = append

  -- Returns the times that are still in the period, oldest first. With `all`, it returns every time of the ring.
  function kind.times(l, all)
    local ring, list = call('GETRANGE', key, l.offset, l.offset + 8 * l.b - 1), {}
    local start = all and first(l) or later_than(l, l.period, max(last(l), now))
    for index = start, l.a - 1 do
      local at = 8 * (index % l.b) + 1
      list[#list + 1] = at + 7 <= #ring and read('>I8', ring, at) or 0
    end
    return list
  end

  -- Appends these times.
  function kind.restore(l, list)
    local bytes = {}
    for index = 1, #list do bytes[index] = pack('>I8', list[index]) end
    local slot = l.a % l.b
    local here = min(#bytes, l.b - slot)
    if here > 0 then call('SETRANGE', key, l.offset + 8 * slot, table.concat(bytes, '', 1, here)) end
    if #bytes > here then call('SETRANGE', key, l.offset, table.concat(bytes, '', here + 1)) end
    l.a = l.a + #bytes
  end

  return kind
end

-- Limits.

local kinds = {}

local function kind_of(strategy)
  local create = strategy == 0 and windows or strategy == 1 and counters or strategy == 2 and logs or buckets
  kinds[create] = kinds[create] or create()
  return kinds[create]
end

local function parse(terms)
  local limits, count = {}, #terms / 48
  for i = 1, count do
    local id, strategy, requests, period, burst, debt = read('<dddddd', terms, 48 * i - 47)
    local kind, leaky = kind_of(strategy), strategy == 5
    local most = burst + debt + (leaky and 1 or 0)
    local l = {
      id = id, strategy = strategy, kind = kind, requests = requests, period = period, burst = burst, a = 0, b = 0,
      c = 0, leaky = leaky, log = strategy == 2, bucket = strategy >= 3, lends = strategy == 3 or strategy == 6,
      most = most, at_once = leaky and 1 or most, whole = 0, rest = 0, capacity_us = 0, capacity_parts = 0,
    }
    kind.prepare(l)
    limits[i] = l
  end
  return limits, count
end

-- Sets the position of each log's ring.
local function place(limits)
  local offset = HEADER
  for i = 1, #limits do
    local l = limits[i]
    l.offset = offset
    if l.log then offset = offset + 8 * l.b end
  end
end

-- Replaces limits by limits with newer terms: see state/change.rs. `known` are the limits so far, and then former ones.
-- Returns the new limits and then the former ones.
local function change(known, news)
  -- Returns the level of a bucket under new terms.
  local function moved(old, new)
    local after = new.kind.after
    local units = old.kind.units_to(old, now, 0, old.a, old.b)
    local us, parts = after(old, now, 0, units)
    us, parts = old.a - us, old.b - parts
    if parts < 0 then us, parts = us - 1, parts + old.requests end
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

  local times, counts, pairs_of, all, ring_of = {}, {}, {}, {}, {}
  for _, old in ipairs(known) do old.kind.advance(old) end
  for i, new in ipairs(news) do all[i] = new end
  for i, new in ipairs(news) do
    new.kind.fresh(new)
    local counts_like = false
    for _, old in ipairs(known) do
      if old.id == new.id then
        local alike = not new.bucket and old.strategy == new.strategy and old.period == new.period
        local count = old.kind.used(old)
        if not pairs_of[i] or (not new.bucket and (alike or (count > counts[i] and not counts_like))) then
          pairs_of[i], counts[i], counts_like = old, count, alike
        end
        if not old.bucket and not alike and old.kind.full_at(old) > now then all[#all + 1] = old end
      end
    end
    local old = pairs_of[i]
    if old and old.log and new.log then
      local is_same = old.requests == new.requests
      times[i] = old.kind.times(old, is_same)
      if is_same then new.a, new.b, new.c = old.a - #times[i], old.b, old.c
      else new.b = max(new.requests, #times[i]) end
    end
  end
  while #all > MOST_KNOWN and #all > #news do
    local shortest = #news + 1
    for i = shortest, #all do
      if all[i].period < all[shortest].period then shortest = i end
    end
    table.remove(all, shortest)
  end
  for i = #news + 1, #all do
    if all[i].log then ring_of[i] = all[i].kind.times(all[i], true) end
  end
  place(all)
  call('DEL', key) -- frees longer rings of the old terms
  for i, new in ipairs(news) do
    local old, count = pairs_of[i], counts[i]
    if not old then -- a new limit: it has no state
    elseif old.bucket and new.bucket then new.a, new.b = moved(old, new)
    elseif times[i] then new.kind.restore(new, times[i])
    elseif old.strategy == new.strategy and old.period == new.period then new.a, new.b, new.c = old.a, old.b, old.c
    elseif new.bucket then
      local left = max(0, old.requests - count)
      new.a, new.b = new.kind.after(new, now, 0, max(0, new.at_once - left))
    elseif new.log then new.kind.append(new, now, count)
    else new.b = count end
  end
  for i, ring in pairs(ring_of) do
    all[i].a = all[i].a - #ring
    all[i].kind.restore(all[i], ring)
  end
  return all
end

-- The question.

local asked, seen, returned, ban = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local ask_stamp, requests, cost, patience, prefetch, guard, lookahead, owed, credit = read('<ddddddddd', ARGV[2])

local stored = call('GETRANGE', key, 0, HEADER - 1)
local stamp, birth, since, length, terms = ask_stamp, now, 0, 0, asked
local limits, all, count, older = nil, nil, string.byte(stored) or 0, false
if count > 0 and count <= 8 and #stored >= 33 + 72 * count then
  stamp, birth, since, length = read('<dddd', stored, 2)
  terms = string.sub(stored, 34, 33 + 48 * count)
  limits = parse(terms)
  for i = 1, count do
    local l = limits[i]
    l.a, l.b, l.c = read('<ddd', stored, 10 + 48 * count + 24 * i)
  end
  all = limits
  local at = 34 + 72 * count
  local more = string.byte(stored, at) or 0
  if more > 0 and count + more <= MOST_KNOWN and #stored >= at + 72 * more then
    local former = parse(string.sub(stored, at + 1, at + 48 * more))
    all = {unpack(limits)}
    for i = 1, more do
      local l = former[i]
      l.a, l.b, l.c = read('<ddd', stored, at + 48 * more + 24 * i - 23)
      all[count + i] = l
    end
  end
  place(all)
  if stamp < ask_stamp then
    limits, count = parse(asked)
    all = change(all, limits)
    stamp, terms, stored = ask_stamp, asked, ''
  else
    older = stamp ~= ask_stamp or terms ~= asked
  end
else
  if stored ~= '' then call('DEL', key) end
  limits, count = parse(asked)
  for i = 1, count do limits[i].kind.fresh(limits[i]) end
  place(limits)
  all = limits
end

if not older and #seen == 24 * count then
  for i = 1, count do limits[i].kind.raise(limits[i], read('<ddd', seen, 24 * i - 23)) end
end
for i = 1, #all do all[i].kind.advance(all[i]) end
if not older and #returned == 16 + 24 * count then
  local of, units = read('<dd', returned)
  for i = 1, of == birth and count or 0 do
    local a, b, c = read('<ddd', returned, 24 * i - 7)
    limits[i].kind.give_back(limits[i], a, b, c, units)
  end
end
if owed > 0 then
  for i = 1, #all do all[i].kind.owe(all[i], owed) end
end
if credit > 0 then
  for i = 1, #all do
    local l = all[i]
    if l.log then l.kind.forget_newest(l, credit) else l.kind.give_back(l, l.a, l.b, l.c, credit) end
  end
end

-- The ban: see ban.rs.
local banned = false
if ban ~= '' then
  local asked_length, change, ago, seen_since = read('<dddd', ban)
  since, length = max(since, seen_since), older and max(length, asked_length) or asked_length
  local function in_force(at) return at > 0 and min(at, now) + length > now end
  if not in_force(since) then since = change == 1 and max(0, now - ago) or 0 end
  banned = change ~= 2 and in_force(since)
  since = banned and min(since, now) or 0
elseif not older then
  since = 0
end

-- The answer. After 8 numbers come three lists of marks, with three numbers for each limit: served, lent and level. Room
-- for one limit is reserved, because a table that grows is copied.
local reply = {0, 0, now, birth, 0, stamp, older and 1 or 0, banned and since or 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
local lent, level = 3 * count, 6 * count

local granted = banned and 0 or requests
for i = 1, count do
  local l, at = limits[i], 3 * i + 6
  reply[at], reply[at + 1], reply[at + 2] = l.kind.mark(l)
  granted = min(granted, cost > l.most and 0 or l.kind.fits(l, granted, cost, patience))
end
if granted > 0 then
  for i = 1, #all do all[i].kind.charge(all[i], granted * cost) end
end
local next_at = 0
if banned and requests > 0 then
  next_at = since + length
elseif granted < requests then
  for i = 1, count do
    local l = limits[i]
    if cost > l.most then next_at = -1
    elseif next_at >= 0 then next_at = max(next_at, now, l.kind.opens(l, cost)) end
  end
end

local prefetched = granted == requests and not older and not banned and prefetch or 0
for i = 1, count do
  local l, at = limits[i], 3 * i + 6 + lent
  local free
  free, reply[at], reply[at + 1], reply[at + 2] = l.kind.lendable(l, guard, lookahead, prefetched)
  prefetched = min(prefetched, free)
end
if prefetched > 0 then
  for i = 1, count do
    local l, at = limits[i], 3 * i + 6 + lent
    l.kind.lend(l, reply[at], reply[at + 1], prefetched)
  end
  for i = count + 1, #all do all[i].kind.charge(all[i], prefetched) end
end

-- Writes the value if it has changed. A key at full credit needs no value.

local full, has_log = since > 0 and since + length or 0, false
local value = pack('<Bdddd', count, stamp, birth, since, since > 0 and length or 0) .. terms
for i = 1, count do
  local l, at = limits[i], 3 * i + 6 + level
  reply[at], reply[at + 1], reply[at + 2] = l.kind.mark(l)
  full = max(full, l.kind.full_at(l))
  has_log = has_log or l.log
  value = value .. pack('<ddd', l.a, l.b, l.c)
end
if #all > count then
  local states = ''
  value = value .. string.char(#all - count)
  for i = count + 1, #all do
    local l = all[i]
    full = max(full, l.kind.full_at(l))
    has_log = has_log or l.log
    value = value .. pack('<dddddd', l.id, l.strategy, l.requests, l.period, l.burst, 0) -- it has no debt
    states = states .. pack('<ddd', l.a, l.b, l.c)
  end
  value = value .. states
end
if full <= now then
  call('DEL', key)
elseif value ~= string.sub(stored, 1, #value) or (has_log and granted > 0) then
  local until_ms = ceil(full / 1000)
  if has_log then
    call('SETRANGE', key, 0, value .. string.rep(' ', HEADER - #value))
    call('PEXPIREAT', key, until_ms)
  else
    call('SET', key, value, 'PXAT', until_ms)
  end
end

reply[1], reply[2], reply[5] = granted, prefetched, next_at
return pack('<' .. string.rep('d', 8 + 9 * count), unpack(reply)) .. (older and terms or '')
