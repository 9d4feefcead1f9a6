-- Lets the user choose a model from the offers of `dg-lsp setup`. The program writes the choice into the user's
-- configuration file.

local config = require("dg_lsp.config")
local server = require("dg_lsp.server")

local M = {}

local VERSION = 1

---Return the command line of `dg-lsp setup`; nil if the server's command does not end with `serve`.
---@return string[]?
local function setup_command()
  local command = vim.deepcopy(config.current.cmd)
  if command[#command] ~= "serve" then
    return nil
  end
  command[#command] = "setup"
  return vim.list_extend(command, { "--json" })
end

---Run `dg-lsp setup` and call back with its output. If it fails, show the reason.
---@param options string[]
---@param callback fun(output: table)
local function run(options, callback)
  local command = setup_command()
  if not command or vim.fn.executable(command[1]) == 0 then
    server.notify("run dg-lsp setup in a terminal to choose a model", "WARN")
    return
  end
  vim.system(vim.list_extend(command, options), { env = config.variables(), text = true }, function(result)
    vim.schedule(function()
      local ok, output = pcall(vim.json.decode, result.stdout, { luanil = { object = true } })
      if not ok or type(output) ~= "table" or output.version ~= VERSION then
        local reason = vim.trim(result.stderr or ""):gsub("^dg%-lsp: ", "")
        server.notify(reason ~= "" and reason or "the output of dg-lsp setup could not be read", "WARN")
      else
        callback(output)
      end
    end)
  end)
end

---Use a model in all editors: try it, and write it into the user's configuration file if it responds.
---@param model string
---@param beginning? string the first message, with %s for the model's name
function M.use(model, beginning)
  -- "auto" is offered while no laptop model is there.
  local name = model == "auto" and "the embedded model" or model
  server.notify((beginning or "trying %s"):format(name))
  run({ "--yes", model }, function(output)
    local trial = output.trial or {}
    if (trial.problem or "") ~= "" then
      server.notify(("%s was not chosen: %s"):format(name, trial.problem), "WARN")
    elseif output.overruled ~= "" then
      server.notify(output.overruled, "WARN")
    else
      server.notify(("%s is used from now on; a sample took %d ms"):format(name, trial.ms or 0))
    end
  end)
end

---Return whether `dg-lsp setup` itself downloads what is missing, so that the user has no command to run.
---@param offer table
---@return boolean
local function is_pulled_when_chosen(offer)
  return not offer.ready and vim.deep_equal(offer.commands, { "dg-lsp setup --yes " .. offer.model })
end

---Show the commands to run before a model can be used, so that the user can copy them.
---@param offer table
local function show_commands(offer)
  vim.cmd.new()
  vim.bo.buftype, vim.bo.bufhidden, vim.bo.filetype = "nofile", "wipe", "sh"
  local lines = { ("# %s: run these in a terminal; the last one chooses it."):format(offer.title) }
  vim.api.nvim_buf_set_lines(0, 0, -1, true, vim.list_extend(lines, offer.commands))
end

---Let the user choose a model that fits this machine.
function M.choose()
  run({}, function(output)
    vim.ui.select(output.offers, {
      prompt = ("dg-lsp: model (now: %s)"):format(output.model),
      format_item = function(offer)
        local state = offer.recommended and " (recommended)"
          or is_pulled_when_chosen(offer) and " (downloaded when chosen)"
          or not offer.ready and " (after a few commands)"
          or ""
        return ("%s%s: %s; %s; %s"):format(offer.title, state, offer.where, offer.cost, offer.quality)
      end,
    }, function(offer)
      -- Below the list, a message would wait for Enter.
      vim.cmd.redraw()
      if offer and is_pulled_when_chosen(offer) then
        M.use(offer.model, "downloading %s; it is tried when it is there")
      elseif offer and offer.ready then
        M.use(offer.model)
      elseif offer then
        show_commands(offer)
      end
    end)
  end)
end

return M
