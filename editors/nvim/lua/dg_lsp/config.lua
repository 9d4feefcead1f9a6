-- The user's options, checked once in `setup`. Knows nothing of buffers, clients or the screen.

local M = {}

---The server's settings. The server checks the values and reports those that are invalid.
---Keys are those of the configuration file, in camelCase.
---`["engine.model"] = …` and `engine = { model = … }` mean the same.
---@class dg_lsp.Settings
---@field enable? boolean offer suggestions and code actions
---@field ["engine.model"]? string "auto", "embedded", a laptop model, a folder, a hub id, or a remote model
---@field ["engine.editModel"]? string "auto" (none yet), or a model that was trained to write next edits
---@field ["engine.device"]? string "auto", "cpu", "cuda", …
---@field ["engine.dtype"]? "auto"|"float32"|"bfloat16"|"float16"|"int8"|"fp8"|"int4" the precision of the weights
---@field ["engine.threads"]? integer CPU threads of the engine; 0 lets it choose
---@field ["engine.unloadAfter"]? integer seconds without a request after which the engine frees the model's memory
---@field ["completion.trigger"]? "auto"|"held"|"manual" suggest while typing, when revealed, or only on request
---@field ["completion.debounce"]? integer|"auto" milliseconds to wait after a key before a request
---@field ["completion.deadline"]? integer milliseconds after which the best answer so far is shown
---@field ["completion.threshold"]? number lowest probability of an unprompted suggestion
---@field ["completion.uncalibratedBest"]? integer how many answers of an uncalibrated model count as sure
---@field ["completion.tokenThreshold"]? number cut a suggestion before its first token that is less certain
---@field ["completion.candidates"]? integer number of suggestions on request
---@field ["completion.inComments"]? boolean suggest in comments while typing
---@field ["completion.inStrings"]? boolean suggest in strings while typing
---@field ["completion.disabledLanguages"]? string[] languages without unprompted suggestions
---@field ["completion.speculate"]? boolean request in advance what could follow a suggestion
---@field ["completion.inLists"]? boolean|"auto" offer suggestions in ordinary completion lists too
---@field ["completion.invokedByHand"]? boolean a request of a list with the kind Invoked is made by a key
---@field ["nextEdit.trigger"]? "manual"|"off"|"pause" when to offer the next edit
---@field ["actions.deadline"]? integer milliseconds that each request of a fill may take
---@field ["context.windowChars"]? integer characters of the file that the model sees on each side of the hole
---@field ["context.relatedChars"]? integer characters of other files that the model sees

---@class dg_lsp.Config
---@field cmd string[] the command that starts the server
---@field filetypes string[] the filetypes with dg-lsp; the server itself refuses files that may hold secrets
---@field auto boolean suggest while typing; otherwise only on `<Plug>(dg-lsp-request)`
---@field draft boolean show drafts of fills
---@field restarts integer how often a crashed server is restarted within five minutes; a frozen one at most once
---@field settings dg_lsp.Settings the server's settings

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
        ("dg_lsp: unknown option %q; the options are %s"):format(tostring(name), table.concat(known, ", ")),
        0
      )
    end
  end
  vim.validate("dg_lsp: cmd", opts.cmd, function(value)
    return is_strings(value) and #value > 0
  end, true, "a non-empty list of strings")
  vim.validate("dg_lsp: filetypes", opts.filetypes, is_strings, true, "a list of strings")
  vim.validate("dg_lsp: auto", opts.auto, "boolean", true)
  vim.validate("dg_lsp: draft", opts.draft, "boolean", true)
  vim.validate("dg_lsp: restarts", opts.restarts, function(value)
    return type(value) == "number" and value >= 0
  end, true, "a number of 0 or more")
  vim.validate("dg_lsp: settings", opts.settings, function(value)
    return type(value) == "table"
      and vim.iter(pairs(value)):all(function(name)
        return type(name) == "string"
      end)
  end, true, "a table whose keys are strings")
end

---Set the options. Raises an error that names an invalid option.
---@param opts? table
---@return dg_lsp.Config
function M.use(opts)
  vim.validate("dg_lsp: the options", opts, "table", true)
  opts = opts or {}
  check(opts)
  M.current = vim.tbl_extend("force", vim.deepcopy(M.defaults), vim.deepcopy(opts))
  return M.current
end

---Return the server's settings: the user's, each under its full name, and `completion.trigger` from the option `auto`.
---@return table
function M.server_settings()
  -- An ordinary empty table would reach the server as a JSON list.
  local settings = vim.empty_dict()
  for name, value in pairs(vim.deepcopy(M.current.settings)) do
    if type(value) == "table" and not vim.islist(value) then
      for inner, each in pairs(value) do
        local full_name = ("%s.%s"):format(name, inner)
        -- A setting under its full name overrides the nested one.
        settings[full_name] = vim.F.if_nil(M.current.settings[full_name], each)
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

---Return the variables of a process, with which neither a program nor a module is searched in the current folder.
---@return table<string, string>
function M.variables()
  local variables = { PYTHONSAFEPATH = "1" }
  for _, name in ipairs({ "PATH", "PYTHONPATH" }) do
    local folders = vim.tbl_filter(function(folder)
      return vim.startswith(folder, "/")
    end, vim.split(vim.env[name] or "", ":"))
    variables[name] = table.concat(folders, ":")
  end
  return variables
end

return M
