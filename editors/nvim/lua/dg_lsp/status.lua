-- The server's status: the state of the engine, the last latency, and why nothing was suggested.

local M = {}

---@class dg_lsp.Offer
---@field model string
---@field size string
---@field gives string
---@field isNew boolean

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
---@field offer? dg_lsp.Offer
---@field nextEdit? "off"|"pause"|"manual"

---@type table<integer, dg_lsp.Status>
local by_client = {}

---@param value any
---@return any value, with JSON's null as nil
local function from_json(value)
  return value ~= vim.NIL and value or nil
end

---Whether a server's settings ask for next edits.
local asks_for_edits = false

---Watch for next edits while a server's settings ask for them.
local function follow_edits()
  local asks = vim.iter(pairs(by_client)):any(function(_, status)
    return (status.nextEdit or "off") ~= "off"
  end)
  if asks ~= asks_for_edits then
    asks_for_edits = asks
    require("dg_lsp.next_edit").watch(asks)
  end
end

---Handle `dgLsp/status`.
---@param params dg_lsp.Status
---@param context lsp.HandlerContext
function M.on_status(params, context)
  params.latencyMs, params.suppressed = from_json(params.latencyMs), from_json(params.suppressed)
  params.offer = from_json(params.offer)
  local before = by_client[context.client_id]
  by_client[context.client_id] = params
  follow_edits()
  if params.state == "ready" and before and before.state ~= "ready" then
    require("dg_lsp.ghost").ask_again()
  end
  vim.api.nvim_exec_autocmds("User", { pattern = "DgLspStatus", modeline = false, data = params })
  vim.cmd.redrawstatus({ bang = true })
  require("dg_lsp.pull").announce(params.offer)
end

---@param client_id integer
function M.forget(client_id)
  by_client[client_id] = nil
  follow_edits()
  vim.cmd.redrawstatus({ bang = true })
end

---Return the status of a buffer's server, by default of the current buffer. Return nil without a server or a status.
---@param bufnr? integer
---@return dg_lsp.Status?
function M.current(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  return client and by_client[client.id]
end

-- Reasons that the user chose in the settings. Every other reason concerns one place only.
local pause_codes = { off = true, manual = true, language = true }

---Return whether the user's settings stop unprompted suggestions.
---@param status dg_lsp.Status
---@return boolean
function M.is_paused(status)
  return status.suppressed ~= nil and pause_codes[status.suppressed.code] == true
end

---Return why nothing was suggested. For the server a snooze is a setting, so it can't name it.
---@param status dg_lsp.Status with `suppressed`
---@return string
function M.reason(status)
  local snoozed_until = status.suppressed.code == "manual" and require("dg_lsp").snoozed_until()
  return snoozed_until
      and ("suggestions are snoozed until %s; :Dg snooze 0 ends the snooze"):format(snoozed_until)
    or status.suppressed.message
end

---@param status dg_lsp.Status?
---@return "Ready"|"Working"|"Paused"|"Problem"
local function state_word(status)
  if status and status.state == "failed" then
    return "Problem"
  end
  if not status or status.busy or status.state == "starting" or status.state == "loading" then
    return "Working"
  end
  return M.is_paused(status) and "Paused" or "Ready"
end

---Return the status in a few characters of fixed width, for a statusline; "" in buffers without the server.
---@param bufnr? integer
---@return string
function M.line(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  if not client then
    return ""
  end
  -- A statusline is drawn with its own window as the current one.
  local is_edit = asks_for_edits and require("dg_lsp.next_edit").is_shown()
  return ("DG %-7s"):format(is_edit and "Edit" or state_word(by_client[client.id]))
end

---Add the last message in full, because the message area shows only one line of it. A message that a line already says,
---as an engine's failure or as the reason why nothing was suggested, is not repeated.
---@param lines string[]
---@return string[]
local function add_last_message(lines)
  local last_message = require("dg_lsp.server").last_message
  local message = last_message:gsub("^dg%-lsp: ", "")
  local is_said = vim.iter(lines):any(function(line)
    return vim.endswith(line, message) or vim.endswith(line, message .. ".")
  end)
  if last_message ~= "" and not is_said then
    table.insert(lines, ("Last message: %s"):format(last_message))
  end
  return lines
end

---The ends of a sentence that begins with "the engine". The names of the other states follow "is".
local STATES = { off = "is off until the next request", failed = "has failed" }

---Return the engine's state as the end of a sentence.
---@param status dg_lsp.Status
---@return string
local function engine_state(status)
  local loaded = status.state == "loading" and (" (%d%%)"):format(math.floor(100 * status.fraction)) or ""
  return (STATES[status.state] or "is " .. status.state) .. loaded
end

---Return what to do in a buffer without a server, as a sentence.
---@param bufnr? integer
---@return string
local function remedy(bufnr)
  local options = require("dg_lsp.config").current
  local filetype = vim.bo[bufnr or 0].filetype
  if not vim.lsp.is_enabled(require("dg_lsp.server").NAME) then
    -- Without the program `setup` enables nothing, so it may have been called.
    return vim.fn.executable(options.cmd[1]) == 0
        and ("%s can't be run; see :checkhealth dg-lsp."):format(options.cmd[1])
      or 'Put require("dg_lsp").setup() into init.lua.'
  elseif require("dg_lsp.server").why_ended then
    return ("The reason: %s."):format(require("dg_lsp.server").why_ended)
  elseif filetype == "" then
    return "The buffer has no filetype; set one, as in :set filetype=python"
  elseif not vim.list_contains(options.filetypes, filetype) then
    return ("The option `filetypes` of setup() lacks %s."):format(filetype)
  end
  return "See :checkhealth dg-lsp."
end

---Return the status in sentences, one for each line.
---@param bufnr? integer
---@return string[]
function M.sentences(bufnr)
  local client = require("dg_lsp.server").client(bufnr)
  if not client then
    return add_last_message({ "dg-lsp is not running for this buffer. " .. remedy(bufnr) })
  end
  local status = by_client[client.id]
  if not status then
    return add_last_message({ "dg-lsp has started. It has not reported its status yet." })
  end
  local lines = {
    ("%s: the engine %s, with model %s."):format(state_word(status), engine_state(status), status.model),
  }
  if status.message ~= "" then
    table.insert(lines, status.message)
  end
  if status.latencyMs then
    table.insert(lines, ("The last answer took %d ms."):format(status.latencyMs))
  end
  if status.suppressed then
    table.insert(lines, ("No suggestion: %s."):format(M.reason(status)))
  end
  if status.offer then
    table.insert(lines, require("dg_lsp.pull").sentence(status.offer) .. ".")
  end
  return add_last_message(lines)
end

---Show the status in a float that the next movement closes. Several lines in the message area would wait for Enter.
function M.show()
  local options = { focus_id = "dg-lsp-status", border = "rounded", title = " dg-lsp ", wrap = true }
  vim.lsp.util.open_floating_preview(M.sentences(), "", options)
end

return M
