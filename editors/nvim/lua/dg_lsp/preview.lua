-- Shows a change as a diff before it is applied, in a floating window, and returns whether the user accepts it.

local M = {}

---The open preview window; nil without one.
---@type integer?
M.window = nil

---@param bufnr integer
---@param edits lsp.TextEdit[]
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return string[] lines of a diff with three lines of context around each change
local function diff(bufnr, edits, encoding)
  local before = vim.api.nvim_buf_get_lines(bufnr, 0, -1, true)
  local scratch = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(scratch, 0, -1, true, before)
  vim.lsp.util.apply_text_edits(vim.deepcopy(edits), scratch, encoding)
  local after = vim.api.nvim_buf_get_lines(scratch, 0, -1, true)
  vim.api.nvim_buf_delete(scratch, { force = true })
  local text = vim.text.diff(table.concat(before, "\n") .. "\n", table.concat(after, "\n") .. "\n", {
    ctxlen = 3,
  })
  return vim.split(vim.trim(text --[[@as string]]), "\n")
end

---Return whether the user accepts a change. Call it in a coroutine; request handlers run in one.
---@param bufnr integer
---@param edits lsp.TextEdit[]
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@param title string
---@return boolean
function M.ask(bufnr, edits, encoding, title)
  local lines = diff(bufnr, edits, encoding)
  local caller = coroutine.running()
  title = (" %s "):format(title)
  -- Neovim truncates a title or footer that is wider than the window.
  local width = math.max(50, vim.fn.strdisplaywidth(title))
  for _, line in ipairs(lines) do
    width = math.max(width, vim.fn.strdisplaywidth(line) + 1)
  end
  local scratch = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(scratch, 0, -1, true, lines)
  vim.bo[scratch].filetype = "diff"
  vim.bo[scratch].modifiable = false
  vim.bo[scratch].bufhidden = "wipe"
  vim.cmd.stopinsert()
  local window = vim.api.nvim_open_win(scratch, true, {
    relative = "cursor",
    row = 1,
    col = 0,
    width = math.min(width, vim.o.columns - 4),
    height = math.min(#lines, math.max(vim.o.lines - 8, 4)),
    style = "minimal",
    border = "rounded",
    title = title,
    footer = " y apply  n keep the old text ",
  })
  M.window = window
  local is_accepted, is_closed = false, false

  local function close(accepted)
    is_accepted = accepted
    if vim.api.nvim_win_is_valid(window) then
      vim.api.nvim_win_close(window, true)
    end
  end

  for key, accepted in pairs({ y = true, n = false, q = false, ["<Esc>"] = false }) do
    vim.keymap.set("n", key, function()
      close(accepted)
    end, { buffer = scratch, nowait = true })
  end
  -- Resume the caller exactly once, however the window is closed.
  vim.api.nvim_create_autocmd({ "WinClosed", "BufWipeout" }, {
    buffer = scratch,
    callback = function()
      if not is_closed then
        is_closed = true
        M.window = nil
        vim.schedule(function()
          coroutine.resume(caller)
        end)
      end
    end,
  })
  coroutine.yield()
  return is_accepted
end

return M
