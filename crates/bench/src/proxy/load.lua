-- The script of wrk. It sets a random key in each request if there are several keys, and prints the counts as one line
-- of JSON.
local keys = tonumber(os.getenv("WEIR_KEYS") or "1")

if keys > 1 then
   math.randomseed(tonumber(os.getenv("WEIR_SEED") or "1"))
   local before, after
   request = function()
      if not before then
         -- The request is formatted only once, because only the key differs.
         wrk.headers[os.getenv("WEIR_HEADER")] = "@key@"
         before, after = wrk.format():match("^(.*)@key@(.*)$")
         before = before .. os.getenv("WEIR_PREFIX")
      end
      return before .. math.random(0, keys - 1) .. after
   end
end

done = function(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"micros":%d,"bytes":%d,"refused":%d,"failed":%d,"p50":%d,"p99":%d}\n',
      summary.requests, summary.duration, summary.bytes, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99)))
end
