-- The check under the name of the help, :checkhealth dg-lsp. Neovim looks for it in a module of that name.

return require("dg_lsp.health")
