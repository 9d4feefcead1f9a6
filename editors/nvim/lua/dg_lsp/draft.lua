-- The canvas of a fill while it is written: drawn over the text that it will replace, gone when the edit comes.
-- Draws what it is told; asks for nothing.

local config = require("dg_lsp.config")

local M = {}

local namespace = vim.api.nvim_create_namespace("dg-lsp-draft")

---Which client draws in which buffer.
---@type table<integer, integer>
local drawn = {}
---How many drafts were drawn, for tests and the curious.
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
local function to_place(bufnr, position, encoding)
  local line = vim.api.nvim_buf_get_lines(bufnr, position.line, position.line + 1, false)[1] or ""
  return position.line, vim.str_byteindex(line, encoding, position.character, false)
end

---Draw a line of new text over a piece of an old line, covering all of it.
---@param bufnr integer
---@param row integer
---@param from integer
---@param to integer
---@param text string
local function over(bufnr, row, from, to, text)
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
  local first, from = to_place(bufnr, hole.range.start, encoding)
  local last, to = to_place(bufnr, hole.range["end"], encoding)
  local lines = vim.split((hole.text:gsub("\r\n?", "\n")), "\n", { plain = true })
  for row = first, last do
    over(
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
  drawn[bufnr] = nil
  if vim.api.nvim_buf_is_valid(bufnr) then
    vim.api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

---The server shows its canvas.
---@param params dg_lsp.Draft
---@param context lsp.HandlerContext
function M.heard(params, context)
  local client = vim.lsp.get_client_by_id(context.client_id)
  local bufnr = client and require("dg_lsp.server").buffer(client, params.textDocument.uri)
  if not client or not bufnr or not config.current.draft then
    return
  end
  clear(bufnr)
  -- A draft of another version would be drawn in the wrong places.
  if params.done or params.textDocument.version ~= vim.lsp.util.buf_versions[bufnr] then
    return
  end
  drawn[bufnr] = client.id
  M.count = M.count + 1
  for _, hole in ipairs(params.holes) do
    draw(bufnr, hole, client.offset_encoding)
  end
end

---Forget what a client has drawn: it has ended.
---@param client_id integer
function M.forget(client_id)
  for bufnr, drawer in pairs(drawn) do
    if drawer == client_id then
      clear(bufnr)
    end
  end
end

return M
