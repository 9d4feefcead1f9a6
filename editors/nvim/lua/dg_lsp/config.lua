-- What a user can choose, checked once when it is given. Knows nothing of buffers, clients or the screen.

local M = {}

---What the server can be told; it checks the values itself and explains those that it does not take.
---Keys are those of the configuration file; `["engine.model"] = …` and `engine = { model = … }` mean the same.
---@class dg_lsp.Settings
---@field enable? boolean suggestions and actions at all
---@field ["engine.model"]? string "embedded", a model's name, or a folder
---@field ["engine.device"]? string "auto", "cpu", "cuda", …
---@field ["engine.dtype"]? "auto"|"float32"|"bfloat16"|"float16"|"fp8"|"int4" how wide the weights are kept
---@field ["engine.threads"]? integer 0 lets the engine choose
---@field ["engine.unloadAfter"]? integer seconds without a request after which the model's memory is given back
---@field ["completion.trigger"]? "auto"|"manual" ask while typing, or only on request
---@field ["completion.debounce"]? integer|"auto" milliseconds to wait before asking
---@field ["completion.deadline"]? integer milliseconds that an answer may take
---@field ["completion.threshold"]? number show by oneself only what is right with at least this probability
---@field ["completion.uncalibratedBest"]? integer
---@field ["completion.tokenThreshold"]? number cut an answer at the first token that is less certain
---@field ["completion.candidates"]? integer how many answers to choose from on request
---@field ["completion.inComments"]? boolean
---@field ["completion.inStrings"]? boolean
---@field ["completion.disabledLanguages"]? string[]
---@field ["completion.speculate"]? boolean ask ahead for what could follow a suggestion
---@field ["completion.inLists"]? boolean|"auto" offer suggestions in ordinary completion lists too
---@field ["actions.deadline"]? integer milliseconds that a fill may take
---@field ["context.windowChars"]? integer
---@field ["context.relatedChars"]? integer
---@field ["statistics"]? boolean count locally what is shown and accepted

---@class dg_lsp.Config
---@field cmd string[] how the server is started
---@field filetypes string[] the buffers that the server sees; it refuses by itself what may hold secrets
---@field auto boolean suggest while typing; else only `<Plug>(dg-lsp-request)` asks
---@field draft boolean show a fill while it is being written
---@field restarts integer how often a server that crashed is started again within five minutes
---@field settings dg_lsp.Settings what the server is told

---@type dg_lsp.Config
M.defaults = {
  cmd = { "dg-lsp", "serve" },
  -- stylua: ignore
  filetypes = {
    "bash", "c", "cpp", "cs", "css", "dockerfile", "elixir", "env", "go", "haskell", "html", "java", "javascript",
    "javascriptreact", "json", "julia", "kotlin", "lua", "make", "markdown", "ocaml", "perl", "php", "proto", "python",
    "r", "ruby", "rust", "scala", "scss", "sh", "sql", "svelte", "swift", "terraform", "tex", "toml", "typescript",
    "typescriptreact", "vim", "vue", "yaml", "zig",
  },
  auto = true,
  draft = true,
  restarts = 3,
  settings = {},
}

---@type dg_lsp.Config
M.current = vim.deepcopy(M.defaults)

---@param value any
---@return boolean
local function is_strings(value)
  return vim.islist(value) and vim.iter(value):all(function(item)
    return type(item) == "string"
  end)
end

---@param opts table
local function check(opts)
  for name in pairs(opts) do
    if M.defaults[name] == nil then
      local known = vim.tbl_keys(M.defaults)
      table.sort(known)
      error(
        ("dg_lsp: there is no option %q; there are %s"):format(tostring(name), table.concat(known, ", ")),
        0
      )
    end
  end
  vim.validate("dg_lsp: cmd", opts.cmd, function(value)
    return is_strings(value) and #value > 0
  end, true, "a list of strings that is not empty")
  vim.validate("dg_lsp: filetypes", opts.filetypes, is_strings, true, "a list of strings")
  vim.validate("dg_lsp: auto", opts.auto, "boolean", true)
  vim.validate("dg_lsp: draft", opts.draft, "boolean", true)
  vim.validate("dg_lsp: restarts", opts.restarts, function(value)
    return type(value) == "number" and value >= 0
  end, true, "a number that is not negative")
  vim.validate("dg_lsp: settings", opts.settings, function(value)
    return type(value) == "table"
      and vim.iter(pairs(value)):all(function(name)
        return type(name) == "string"
      end)
  end, true, "a table with names")
end

---Use these options from now on; raises an error that names the option that is wrong.
---@param opts? table
---@return dg_lsp.Config
function M.use(opts)
  vim.validate("dg_lsp: the options", opts, "table", true)
  opts = opts or {}
  check(opts)
  M.current = vim.tbl_extend("force", vim.deepcopy(M.defaults), vim.deepcopy(opts))
  return M.current
end

---Return what the server is told: the user's settings, each under its whole name, and `auto` in the server's words.
---@return table
function M.server_settings()
  -- Without a word in it, a table would reach the server as an empty list.
  local settings = vim.empty_dict()
  for name, value in pairs(vim.deepcopy(M.current.settings)) do
    if type(value) == "table" and not vim.islist(value) then
      for inner, each in pairs(value) do
        local whole = ("%s.%s"):format(name, inner)
        -- What has its whole name already stands.
        settings[whole] = vim.F.if_nil(M.current.settings[whole], each)
      end
    else
      settings[name] = value
    end
  end
  if not settings["completion.trigger"] and not M.current.auto then
    settings["completion.trigger"] = "manual"
  end
  return settings
end

return M
