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

-- The user's own choice; every other reason is of one place, and says nothing of how dg-lsp is doing.
local pauses = { off = true, manual = true, language = true }

---@param status dg_lsp.Status?
---@return "Ready"|"Working"|"Paused"|"Problem"
local function word(status)
  if not status or status.busy or status.state ~= "ready" then
    return status and status.state == "failed" and "Problem" or "Working"
  end
  return status.suppressed and pauses[status.suppressed.code] and "Paused" or "Ready"
end

---Return a few characters for a statusline, always as many; "" in buffers without the server.
---@param bufnr? integer
---@return string
function M.line(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  return client and ("DG %-7s"):format(word(by_client[client.id])) or ""
end

---Add the last message in full: the message area shows one line of it.
---@param lines string[]
---@return string[]
local function add_last_words(lines)
  local last_words = require("dg_lsp.server").last_words
  if last_words ~= "" then
    table.insert(lines, ("Said last: %s"):format(last_words))
  end
  return lines
end

---Return the whole story, one sentence a line.
---@param bufnr? integer
---@return string[]
function M.story(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  if not client then
    return add_last_words({ "dg-lsp is not running for this buffer." })
  end
  local status = by_client[client.id]
  if not status then
    return add_last_words({ "dg-lsp has started and has reported nothing yet." })
  end
  local loaded = status.state == "loading" and (" (%d%%)"):format(math.floor(100 * status.fraction)) or ""
  local lines = {
    ("%s: the engine is %s%s, with model %s."):format(word(status), status.state, loaded, status.model),
  }
  if status.message ~= "" then
    table.insert(lines, status.message)
  end
  if status.latencyMs then
    table.insert(lines, ("The last answer took %d ms."):format(status.latencyMs))
  end
  if status.suppressed then
    table.insert(lines, ("No suggestion: %s."):format(status.suppressed.message))
  end
  add_last_words(lines)
  return lines
end

return M
