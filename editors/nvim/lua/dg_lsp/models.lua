-- The choice of a model: what `dg-lsp setup` offers. The program writes the choice into the user's own file.

local config = require("dg_lsp.config")
local server = require("dg_lsp.server")

local M = {}

local VERSION = 1

---Return the command line of `dg-lsp setup`, nil where it can't be told from how the server is started.
---@return string[]?
local function setup_command()
  local command = vim.deepcopy(config.current.cmd)
  if command[#command] ~= "serve" then
    return nil
  end
  command[#command] = "setup"
  return vim.list_extend(command, { "--json" })
end

---Run `dg-lsp setup`, and call with what it says; where it fails, the user is told.
---@param more string[]
---@param heard fun(stated: table)
local function run(more, heard)
  local command = setup_command()
  if not command or vim.fn.executable(command[1]) == 0 then
    server.say("run dg-lsp setup in a terminal to choose a model", "WARN")
    return
  end
  vim.system(vim.list_extend(command, more), { text = true }, function(done)
    vim.schedule(function()
      local ok, stated = pcall(vim.json.decode, done.stdout, { luanil = { object = true } })
      if not ok or type(stated) ~= "table" or stated.version ~= VERSION then
        local reason = vim.trim(done.stderr or ""):gsub("^dg%-lsp: ", "")
        server.say(reason ~= "" and reason or "dg-lsp setup could not be understood", "WARN")
      else
        heard(stated)
      end
    end)
  end)
end

---Use a model from now on, in all editors: the user's configuration file names it then.
---@param model string
function M.use(model)
  server.say(("trying %s"):format(model))
  run({ "--yes", model }, function(stated)
    local trial = stated.trial or {}
    if stated.overruled ~= "" or (trial.problem or "") ~= "" then
      server.say(stated.overruled ~= "" and stated.overruled or trial.problem, "WARN")
    else
      server.say(("%s is used from now on; a sample took %d ms"):format(model, trial.ms or 0))
    end
  end)
end

---Show the commands that come before a model can be used, to be copied.
---@param offer table
local function show_commands(offer)
  vim.cmd.new()
  vim.bo.buftype, vim.bo.bufhidden, vim.bo.filetype = "nofile", "wipe", "sh"
  local lines = { ("# %s: run these in a terminal; the last one chooses it."):format(offer.title) }
  vim.api.nvim_buf_set_lines(0, 0, -1, true, vim.list_extend(lines, offer.commands))
end

---Let the user choose among what fits this machine.
function M.choose()
  run({}, function(stated)
    vim.ui.select(stated.offers, {
      prompt = ("dg-lsp: model (now: %s)"):format(stated.model),
      format_item = function(offer)
        local state = offer.recommended and " (recommended)"
          or not offer.ready and " (after a few commands)"
          or ""
        return ("%s%s: %s; %s; %s"):format(offer.title, state, offer.where, offer.cost, offer.quality)
      end,
    }, function(offer)
      if offer and offer.ready then
        M.use(offer.model)
      elseif offer then
        show_commands(offer)
      end
    end)
  end)
end

return M
