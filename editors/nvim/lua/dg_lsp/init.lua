-- The public functions: `setup`, and one for each command and key.

local config = require("dg_lsp.config")
local ghost = require("dg_lsp.ghost")
local server = require("dg_lsp.server")
local status = require("dg_lsp.status")

local M = {}

---Ends the running snooze; nil without one.
---@type uv.uv_timer_t?
local snooze_timer

---The time of day when the running snooze ends.
local snooze_end = ""

---Check the options and enable dg-lsp. Raises an error that names an invalid option.
---@param opts? dg_lsp.Config|{}
function M.setup(opts)
  if vim.fn.has("nvim-0.12") == 0 then
    server.notify("this plugin needs Neovim 0.12 or later", "ERROR")
    return
  end
  local options = config.use(opts)
  vim.lsp.config(server.NAME, {
    filetypes = options.filetypes,
    settings = { dgLsp = config.server_settings() },
  })
  if vim.fn.executable(options.cmd[1]) == 0 then
    server.notify(("%s can't be run; see :checkhealth dg-lsp"):format(options.cmd[1]), "WARN")
    return
  end
  server.detect_types()
  require("dg_lsp.macro").watch()
  vim.lsp.enable(server.NAME)
end

M.accept = ghost.accept
M.accept_word = ghost.accept_word
M.accept_line = ghost.accept_line
M.next = ghost.next
M.previous = ghost.previous
M.dismiss = ghost.dismiss
M.reveal = ghost.reveal
M.is_shown = ghost.is_shown

---Go to the next edit, or apply it if the cursor is there. Without one, ask for it.
function M.next_edit()
  require("dg_lsp.next_edit").next()
end

---Reject the next edit that is shown.
function M.reject_edit()
  require("dg_lsp.next_edit").reject()
end

---Return whether a next edit is shown in the current buffer.
---@return boolean
function M.has_next_edit()
  return require("dg_lsp.next_edit").is_shown()
end

---Request a suggestion now.
function M.request()
  ghost.request()
end

---Return the status of a buffer's server; nil without a server.
M.status = status.current

---Return the status in a few characters, for a statusline.
M.statusline = status.line

local function stop_snooze_timer()
  if snooze_timer then
    snooze_timer:stop()
    snooze_timer:close()
    snooze_timer = nil
  end
end

local function hide()
  if ghost.is_shown() then
    ghost.dismiss()
  end
  require("dg_lsp.next_edit").hide()
end

---The user's `completion.trigger`, while suggestions are paused.
local usual_trigger = "auto"

local paused = false

---Return whether the user has stopped what comes unprompted.
---@return boolean
function M.is_paused()
  return paused
end

---@param is_paused boolean
local function pause_all(is_paused)
  paused = is_paused
  server.change_settings(function(settings)
    local trigger = settings["completion.trigger"]
    if is_paused and trigger ~= "manual" then
      usual_trigger = trigger or "auto"
    end
    settings["completion.trigger"] = is_paused and "manual" or usual_trigger
  end)
end

---Stop unprompted suggestions, everywhere or in one language. Explicit requests still work.
---@param filetype? string
function M.pause(filetype)
  hide()
  if not filetype then
    stop_snooze_timer()
    pause_all(true)
    server.notify("no suggestions until :Dg resume")
    return
  end
  server.change_settings(function(settings)
    local languages = settings["completion.disabledLanguages"] or {}
    if not vim.list_contains(languages, filetype) then
      settings["completion.disabledLanguages"] = vim.list_extend(vim.deepcopy(languages), { filetype })
    end
  end)
  server.notify(("no suggestions in %s until :Dg resume %s"):format(filetype, filetype))
end

---Resume unprompted suggestions, everywhere or in one language.
---@param filetype? string
function M.resume(filetype)
  if not filetype then
    stop_snooze_timer()
    pause_all(false)
    server.notify("suggestions are on")
    return
  end
  server.change_settings(function(settings)
    settings["completion.disabledLanguages"] = vim.tbl_filter(function(language)
      return language ~= filetype
    end, settings["completion.disabledLanguages"] or {})
  end)
  server.notify(("suggestions are on in %s"):format(filetype))
end

---Stop unprompted suggestions for some minutes, 15 by default; 0 ends the snooze.
---@param minutes? number
function M.snooze(minutes)
  minutes = minutes or 15
  if minutes <= 0 then
    M.resume()
    return
  end
  stop_snooze_timer()
  hide()
  pause_all(true)
  snooze_end = os.date("%H:%M", os.time() + math.floor(minutes * 60)) --[[@as string]]
  snooze_timer = vim.defer_fn(function()
    snooze_timer = nil
    pause_all(false)
  end, minutes * 60000)
  server.notify(("no suggestions for %g minutes; :Dg snooze 0 ends the snooze"):format(minutes))
end

---Return the time of day when the running snooze ends; nil without one.
---@return string?
function M.snoozed_until()
  return snooze_timer and snooze_end
end

---Use another model until Neovim ends.
---@param model string "auto", "embedded", a laptop model, a folder, a hub id, or a remote model such as "vllm:URL"
function M.use_model(model)
  server.change_settings(function(settings)
    settings["engine.model"] = model
  end)
end

M.restart = server.restart

return M
