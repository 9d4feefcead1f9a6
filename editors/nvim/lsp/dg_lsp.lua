-- How Neovim starts and speaks to the server; `require("dg_lsp").setup()` puts the user's options on top.

local config = require("dg_lsp.config")

---@type vim.lsp.Config
return {
  cmd = config.current.cmd,
  filetypes = config.current.filetypes,
  root_markers = { ".git", "pyproject.toml", "package.json", "Cargo.toml", "go.mod" },
  root_dir = function(bufnr, on_dir)
    local server = require("dg_lsp.server")
    if not server.is_second(bufnr) then
      on_dir(vim.fs.root(bufnr, vim.lsp.config[server.NAME].root_markers))
    end
  end,
  settings = { dgLsp = config.server_settings() },
  capabilities = {
    -- The server sends its own notifications only to those who say that they understand them.
    experimental = { dgLsp = { status = true, draft = true, preview = true } },
    -- So that what a code action does comes by `workspace/applyEdit`, where it can be looked at first.
    textDocument = { codeAction = { resolveSupport = vim.NIL } },
    -- Neovim reads edits of one version, and does not say so; of edits with annotations it tells each time.
    workspace = { workspaceEdit = { documentChanges = true, changeAnnotationSupport = vim.NIL } },
  },
  handlers = {
    ["dgLsp/status"] = function(_, params, context)
      require("dg_lsp.status").heard(params, context)
    end,
    ["workspace/applyEdit"] = function(err, params, context)
      return require("dg_lsp.fill").apply(err, params, context)
    end,
    ["window/showMessage"] = function(_, params)
      require("dg_lsp.server").heard(params)
    end,
    ["dgLsp/draft"] = function(_, params, context)
      require("dg_lsp.draft").heard(params, context)
    end,
  },
  on_attach = function(client, bufnr)
    require("dg_lsp.fill")
    require("dg_lsp.ghost").attach(client, bufnr)
    require("dg_lsp.server").follow_name(client, bufnr)
  end,
  on_exit = function(code, signal, client_id)
    require("dg_lsp.server").ended(code, signal, client_id)
  end,
}
