-- What users call: setup, and one function for each thing to do.

local config = require("dg_lsp.config")
local ghost = require("dg_lsp.ghost")
local server = require("dg_lsp.server")
local status = require("dg_lsp.status")

local M = {}

---What ends a snooze, while one is under way.
---@type uv.uv_timer_t?
local snoozing

---Check the options and switch dg-lsp on. Raises an error that names the option that is wrong.
---@param opts? dg_lsp.Config|{}
function M.setup(opts)
  if vim.fn.has("nvim-0.12") == 0 then
    server.say("Neovim 0.12 or later is needed", "ERROR")
    return
  end
  local chosen = config.use(opts)
  vim.lsp.config(server.NAME, {
    cmd = chosen.cmd,
    filetypes = chosen.filetypes,
    settings = { dgLsp = config.server_settings() },
  })
  if vim.fn.executable(chosen.cmd[1]) == 0 then
    server.say(("%s can't be run; :checkhealth dg-lsp says more"):format(chosen.cmd[1]), "WARN")
    return
  end
  vim.lsp.enable(server.NAME)
end

M.accept = ghost.accept
M.accept_word = ghost.accept_word
M.accept_line = ghost.accept_line
M.next = ghost.next
M.previous = ghost.previous
M.dismiss = ghost.dismiss
M.is_shown = ghost.is_shown

---Ask for suggestions now.
function M.request()
  ghost.request()
end

---Return how things are, nil in buffers without the server.
M.status = status.current

---Return a few characters for a statusline.
M.statusline = status.line

---Suggest no more by oneself, everywhere or in one language; asking for suggestions still works.
---@param filetype? string
function M.pause(filetype)
  server.tell(function(settings)
    if filetype then
      local languages = settings["completion.disabledLanguages"] or {}
      if not vim.list_contains(languages, filetype) then
        settings["completion.disabledLanguages"] = vim.list_extend(vim.deepcopy(languages), { filetype })
      end
    else
      settings["completion.trigger"] = "manual"
    end
  end)
end

---Suggest again.
---@param filetype? string
function M.resume(filetype)
  server.tell(function(settings)
    if filetype then
      settings["completion.disabledLanguages"] = vim.tbl_filter(function(language)
        return language ~= filetype
      end, settings["completion.disabledLanguages"] or {})
    else
      settings["completion.trigger"] = "auto"
    end
  end)
end

---Suggest no more by oneself for so many minutes, 15 by default; 0 ends it.
---@param minutes? number
function M.snooze(minutes)
  minutes = minutes or 15
  if snoozing then
    snoozing:stop()
    snoozing:close()
    snoozing = nil
  else
    M.pause()
  end
  if minutes <= 0 then
    M.resume()
    return
  end
  snoozing = vim.defer_fn(function()
    snoozing = nil
    M.resume()
  end, minutes * 60000)
  server.say(("no suggestions for %g minutes; :Dg snooze 0 ends that"):format(minutes))
end

---Use another model from now on.
---@param model string "embedded", a model's name, or a folder
function M.use_model(model)
  server.tell(function(settings)
    settings["engine.model"] = model
  end)
end

M.restart = server.restart

return M
