-- Show a reason, such as that for no suggestion, at the end of the cursor's line. In Insert mode, "-- INSERT --" covers
-- messages.

local M = {}

local namespace = vim.api.nvim_create_namespace("dg-lsp-reason")
local group = vim.api.nvim_create_augroup("dg-lsp-reason", {})

---Show a reason until the user types, moves the cursor or leaves Insert mode.
---@param bufnr integer
---@param reason string
function M.show(bufnr, reason)
  local row = vim.api.nvim_win_get_cursor(0)[1] - 1
  vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  vim.api.nvim_buf_set_extmark(bufnr, namespace, row, 0, {
    virt_text = { { "  dg-lsp: " .. reason, "Comment" } },
    virt_text_pos = "eol",
  })
  vim.api.nvim_create_autocmd({ "TextChangedI", "CursorMovedI", "InsertLeave", "BufLeave" }, {
    group = group,
    buffer = bufnr,
    once = true,
    callback = function()
      vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
    end,
  })
end

return M
