-- The configuration that Neovim uses to start the server. `require("dg_lsp").setup()` applies the user's options to it.

local config = require("dg_lsp.config")

---@type vim.lsp.Config
return {
  cmd = function(dispatchers, client_config)
    return require("dg_lsp.watchdog").start(dispatchers, client_config)
  end,
  filetypes = config.current.filetypes,
  root_markers = { ".git", "pyproject.toml", "package.json", "Cargo.toml", "go.mod" },
  root_dir = function(bufnr, on_dir)
    local server = require("dg_lsp.server")
    if server.may_start(bufnr) then
      on_dir(vim.fs.root(bufnr, vim.lsp.config[server.NAME].root_markers))
    end
  end,
  settings = { dgLsp = config.server_settings() },
  capabilities = {
    -- The server sends its own notifications only to clients that announce support for them.
    experimental = {
      dgLsp = { status = true, draft = true, preview = true, offer = true, refresh = true, held = true },
    },
    -- Without `resolveSupport` the edit of a code action arrives as `workspace/applyEdit`, where it can be previewed.
    textDocument = { codeAction = { resolveSupport = vim.NIL } },
    -- Neovim supports `documentChanges` but does not announce it. It shows a message for every annotated edit.
    workspace = { workspaceEdit = { documentChanges = true, changeAnnotationSupport = vim.NIL } },
  },
  handlers = {
    ["dgLsp/status"] = function(_, params, context)
      require("dg_lsp.status").on_status(params, context)
    end,
    ["dgLsp/refresh"] = function(_, params)
      require("dg_lsp.ghost").on_refresh(params.textDocument)
    end,
    ["workspace/applyEdit"] = function(err, params, context)
      return require("dg_lsp.fill").apply(err, params, context)
    end,
    ["window/showMessage"] = function(_, params)
      require("dg_lsp.server").on_message(params)
    end,
    ["dgLsp/draft"] = function(_, params, context)
      require("dg_lsp.draft").on_draft(params, context)
    end,
  },
  on_attach = function(client, bufnr)
    require("dg_lsp.fill")
    require("dg_lsp.ghost").attach(client, bufnr)
    require("dg_lsp.place").attach(client, bufnr)
    require("dg_lsp.server").follow_name(client, bufnr)
  end,
  on_exit = function(code, signal, client_id)
    require("dg_lsp.server").on_exit(code, signal, client_id)
  end,
}
