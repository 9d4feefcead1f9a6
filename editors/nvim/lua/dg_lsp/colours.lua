-- Makes ghost text grey in terminals without true colour. Neovim's own scheme gives `ComplHint` a colour for
-- 'termguicolors' only, so in other terminals a suggestion would look like the user's text.

local M = {}

---Bright black, which shells use for suggestions too.
local GREY = 8

---The definition that this module has set, and the one before it.
local applied, before ---@type vim.api.keyset.get_hl_info?, vim.api.keyset.get_hl_info?

---Give ghost text a terminal colour, unless the colour scheme has one for it.
local function add_terminal_colour()
  if applied and vim.deep_equal(vim.api.nvim_get_hl(0, { name = "ComplHint" }), applied) then
    -- The group that it was linked to may have another colour now.
    vim.api.nvim_set_hl(0, "ComplHint", before --[[@as vim.api.keyset.highlight]])
  end
  before, applied = vim.api.nvim_get_hl(0, { name = "ComplHint" }), nil
  local resolved = vim.api.nvim_get_hl(0, { name = "ComplHint", link = false })
  if resolved.ctermfg or resolved.ctermbg or resolved.cterm then
    return
  end
  resolved.ctermfg = GREY
  vim.api.nvim_set_hl(0, "ComplHint", resolved --[[@as vim.api.keyset.highlight]])
  applied = vim.api.nvim_get_hl(0, { name = "ComplHint" })
end

---Set the highlights now and after each change of the colours.
function M.define()
  for name, link in pairs({ DgLspDraft = "ComplHint", DgLspEditOld = "DiffDelete", DgLspEditNew = "DiffAdd" }) do
    vim.api.nvim_set_hl(0, name, { default = true, link = link })
  end
  add_terminal_colour()
  local group = vim.api.nvim_create_augroup("dg-lsp-colours", {})
  vim.api.nvim_create_autocmd("ColorScheme", { group = group, callback = add_terminal_colour })
  vim.api.nvim_create_autocmd("OptionSet", {
    group = group,
    pattern = "background",
    callback = add_terminal_colour,
  })
end

return M
