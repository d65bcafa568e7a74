-- Health of a RateLimitPolicy for Argo CD: resource.customizations.health.weir.dev_RateLimitPolicy in argocd-cm.
local status = obj.status or {}
-- The status of an earlier generation does not describe the current generation.
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "waiting for the operator to process generation " .. tostring(obj.metadata.generation)}
end
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end
local function holds(type)
  return found[type] ~= nil and found[type].status == "True"
end
if holds("Stalled") then
  return {status = "Degraded", message = found.Stalled.message}
end
if holds("Ready") then
  return {status = "Healthy", message = found.Ready.message}
end
local waiting = found.Reconciling or found.Ready
return {status = "Progressing", message = waiting and waiting.message or "waiting for the operator"}
