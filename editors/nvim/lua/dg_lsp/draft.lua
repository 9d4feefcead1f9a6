-- Draws the draft of a fill over the text that it will replace, and removes it when the edit arrives.
-- Sends no requests.

local config = require("dg_lsp.config")

local M = {}

local namespace = vim.api.nvim_create_namespace("dg-lsp-draft")

---The client whose draft is shown, by buffer.
---@type table<integer, integer>
local client_by_buffer = {}
---How many drafts were drawn; for tests.
M.count = 0

---@class dg_lsp.Draft
---@field version integer
---@field token string
---@field textDocument { uri: string, version?: integer }
---@field holes { range: lsp.Range, text: string }[]
---@field step integer
---@field done boolean

---@param bufnr integer
---@param position lsp.Position
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return integer row, integer column in bytes
local function to_byte_position(bufnr, position, encoding)
  local line = vim.api.nvim_buf_get_lines(bufnr, position.line, position.line + 1, false)[1] or ""
  return position.line, vim.str_byteindex(line, encoding, position.character, false)
end

---Draw a line of the draft over the bytes `from` to `to` of an existing line. Spaces cover the rest of them.
---@param bufnr integer
---@param row integer
---@param from integer
---@param to integer
---@param text string
local function draw_line(bufnr, row, from, to, text)
  local line = vim.api.nvim_buf_get_lines(bufnr, row, row + 1, false)[1] or ""
  to = math.min(to, #line)
  local room = vim.fn.strdisplaywidth(line:sub(1, to)) - vim.fn.strdisplaywidth(line:sub(1, from))
  text = text:gsub("\t", (" "):rep(vim.bo[bufnr].tabstop))
  local head, width = "", 0
  local rest = text
  for _, character in ipairs(vim.fn.split(text, [[\zs]])) do
    local cells = vim.fn.strdisplaywidth(character)
    if width + cells > room then
      break
    end
    head, width, rest = head .. character, width + cells, rest:sub(#character + 1)
  end
  if room > 0 then
    vim.api.nvim_buf_set_extmark(bufnr, namespace, row, from, {
      virt_text = { { head .. (" "):rep(room - width), "DgLspDraft" } },
      virt_text_pos = "overlay",
    })
  end
  if rest ~= "" then
    vim.api.nvim_buf_set_extmark(bufnr, namespace, row, to, {
      virt_text = { { rest, "DgLspDraft" } },
      virt_text_pos = "inline",
    })
  end
end

---@param bufnr integer
---@param hole { range: lsp.Range, text: string }
---@param encoding "utf-8"|"utf-16"|"utf-32"
local function draw(bufnr, hole, encoding)
  local first, from = to_byte_position(bufnr, hole.range.start, encoding)
  local last, to = to_byte_position(bufnr, hole.range["end"], encoding)
  local lines = vim.split((hole.text:gsub("\r\n?", "\n")), "\n", { plain = true })
  for row = first, last do
    draw_line(
      bufnr,
      row,
      row == first and from or 0,
      row == last and to or math.huge,
      lines[row - first + 1] or ""
    )
  end
  local below = vim.list_slice(lines, last - first + 2)
  if #below > 0 then
    vim.api.nvim_buf_set_extmark(bufnr, namespace, last, to, {
      virt_lines = vim.tbl_map(function(line)
        return { { line, "DgLspDraft" } }
      end, below),
    })
  end
end

---@param bufnr integer
local function clear(bufnr)
  client_by_buffer[bufnr] = nil
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

---Handle `dgLsp/draft`: draw the draft.
---@param params dg_lsp.Draft
---@param context lsp.HandlerContext
function M.on_draft(params, context)
  local client = vim.lsp.get_client_by_id(context.client_id)
  local bufnr = client and require("dg_lsp.server").buffer(client, params.textDocument.uri)
  if not client or not bufnr or not config.current.draft then
    return
  end
  clear(bufnr)
  -- The positions of a draft are valid only for its version of the document.
  if params.done or params.textDocument.version ~= vim.lsp.util.buf_versions[bufnr] then
    return
  end
  client_by_buffer[bufnr] = client.id
  M.count = M.count + 1
  for _, hole in ipairs(params.holes) do
    draw(bufnr, hole, client.offset_encoding)
  end
end

---Remove the drafts of a client that has ended.
---@param client_id integer
function M.forget(client_id)
  for bufnr, owner in pairs(client_by_buffer) do
    if owner == client_id then
      clear(bufnr)
    end
  end
end

return M
