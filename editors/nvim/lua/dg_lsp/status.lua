-- How things are, as the server tells it: the state of the engine, the last latency, why nothing was suggested.

local M = {}

---@class dg_lsp.Status
---@field version integer
---@field state "off"|"starting"|"loading"|"ready"|"failed"
---@field model string
---@field message string
---@field fraction number
---@field latencyMs? integer
---@field suppressed? { code: string, message: string }
---@field busy boolean
---@field problems string[]

---@type table<integer, dg_lsp.Status>
local by_client = {}

---@param value any
local function given(value)
  return value ~= vim.NIL and value or nil
end

---The server says how things are now.
---@param params dg_lsp.Status
---@param context lsp.HandlerContext
function M.heard(params, context)
  params.latencyMs, params.suppressed = given(params.latencyMs), given(params.suppressed)
  by_client[context.client_id] = params
  vim.api.nvim_exec_autocmds("User", { pattern = "DgLspStatus", modeline = false, data = params })
  vim.cmd.redrawstatus({ bang = true })
end

---@param client_id integer
function M.forget(client_id)
  by_client[client_id] = nil
  vim.cmd.redrawstatus({ bang = true })
end

---Return the status of a buffer's server, the current one's by default; nil where there is none or it has said nothing.
---@param bufnr? integer
---@return dg_lsp.Status?
function M.current(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  return client and by_client[client.id]
end

---Return a few characters for a statusline; "" in buffers without the server.
---@param bufnr? integer
---@return string
function M.line(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  if not client then
    return ""
  end
  local status = by_client[client.id]
  if not status or status.state == "starting" or status.state == "off" then
    return "DG starting"
  elseif status.state == "loading" then
    return ("DG %d%%"):format(math.floor(100 * status.fraction))
  elseif status.state == "failed" then
    return "DG failed"
  elseif status.busy then
    return "DG filling"
  elseif status.suppressed then
    return "DG -"
  end
  return status.latencyMs and ("DG %d ms"):format(status.latencyMs) or "DG"
end

---Return the whole story, one sentence a line.
---@param bufnr? integer
---@return string[]
function M.story(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  if not client then
    return { "dg-lsp does not run for this buffer." }
  end
  local status = by_client[client.id]
  if not status then
    return { "dg-lsp has started and told nothing yet." }
  end
  local lines = { ("The engine is %s, with model %s."):format(status.state, status.model) }
  if status.message ~= "" then
    table.insert(lines, status.message)
  end
  if status.latencyMs then
    table.insert(lines, ("The last answer took %d ms."):format(status.latencyMs))
  end
  if status.suppressed then
    table.insert(lines, ("No suggestion: %s."):format(status.suppressed.message))
  end
  return lines
end

return M
