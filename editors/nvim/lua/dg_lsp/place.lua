-- Tell the server where the cursor is, so that the model has read the text around it before the user types.

local M = {}

local group = vim.api.nvim_create_augroup("dg-lsp-place", {})

---Report each place of the cursor in a buffer outside Insert mode, where requests for suggestions report it.
---@param client vim.lsp.Client
---@param bufnr integer
function M.attach(client, bufnr)
  vim.api.nvim_clear_autocmds({ group = group, buffer = bufnr })
  local function report()
    if not client:is_stopped() and vim.api.nvim_get_current_buf() == bufnr then
      client:notify("dgLsp/didMove", vim.lsp.util.make_position_params(0, client.offset_encoding))
    end
  end
  vim.api.nvim_create_autocmd({ "CursorMoved", "InsertEnter", "BufEnter" }, {
    group = group,
    buffer = bufnr,
    callback = report,
  })
  report()
end

return M
