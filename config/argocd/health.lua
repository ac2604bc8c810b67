-- Health of a Transport or a RetryPolicy for Argo CD. The rules are those of kstatus, by which Flux and kubectl go:
-- Stalled needs a person and is Degraded, everything else that is not Ready goes on by itself and is Progressing.
local function health(status, message)
  return {status = status, message = message or ""}
end

if obj.metadata.deletionTimestamp ~= nil then
  return health("Progressing", "is being deleted")
end

local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "the operator has not looked at the latest change yet")
end

local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

local function is(name)
  return found[name] ~= nil and found[name].status == "True"
end

local function told(name)
  return found[name].reason .. ": " .. (found[name].message or "")
end

if is("Reconciling") then
  return health("Progressing", told("Reconciling"))
end
if is("Stalled") then
  return health("Degraded", told("Stalled"))
end
if not is("Ready") then
  return health("Progressing", found["Ready"] and told("Ready") or "the operator has not looked at it yet")
end
if is("Degraded") then
  return health("Healthy", "Degraded: " .. found["Degraded"].message)
end
return health("Healthy", found["Ready"].message)
