-- The script of wrk. It sets a random key in each request if there are several keys, and prints the counts as one line
-- of JSON.
local keys = tonumber(os.getenv("WEIR_KEYS") or "1")
-- Each request of this number asks for /hang.
local hang = tonumber(os.getenv("WEIR_HANG") or "0")

if keys > 1 then
   math.randomseed(tonumber(os.getenv("WEIR_SEED") or "1"))
   local prefix = os.getenv("WEIR_PREFIX")
   -- Behind "10." a number is the rest of an address.
   local address = prefix == "10."
   local sent = 0
   local before, after, hang_before, hang_after
   local function parts(path)
      wrk.headers[os.getenv("WEIR_HEADER")] = "@key@"
      local head, tail = wrk.format(nil, path):match("^(.*)@key@(.*)$")
      return head .. prefix, tail
   end
   request = function()
      if not before then
         -- The requests are formatted only once, because only the key differs.
         before, after = parts(nil)
         hang_before, hang_after = parts("/hang")
      end
      local key = math.random(0, keys - 1)
      if address then
         local high, low = math.floor(key / 256), key % 256
         key = math.floor(high / 256) .. "." .. high % 256 .. "." .. low
      end
      if hang > 0 then
         sent = sent + 1
         if sent % hang == 0 then
            return hang_before .. key .. hang_after
         end
      end
      return before .. key .. after
   end
end

done = function(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"micros":%d,"bytes":%d,"refused":%d,"failed":%d,"p50":%d,"p95":%d,"p99":%d}\n',
      summary.requests, summary.duration, summary.bytes, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
