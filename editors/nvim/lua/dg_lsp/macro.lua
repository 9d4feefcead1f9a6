-- Accepting while a macro is recorded: the text is typed, and the macro gets it in place of the key that accepted it.

local M = {}

---The keys of each accepted text of the running recording, and those that accepted it.
---@type { accepting: string, typing: string }[]
local accepted = {}

---The keys that were typed last, before mappings.
local last_typed = ""

---Return keys as a register holds them, where no byte of a character is escaped.
---@param keys string
---@return string
local function unescaped(keys)
  return (keys:gsub("\128\254X", "\128"))
end

---@return boolean
function M.is_recording()
  return vim.fn.reg_recording() ~= ""
end

---Type a text, so that the macro has it.
---@param text string
---@param n_replaced integer characters behind the cursor that it replaces
function M.type(text, n_replaced)
  -- As an expression, because typed lines would be indented and could be abbreviations or mappings.
  local literal = vim.fn.escape(text, [["\]]):gsub("%c", function(char)
    return ("\\x%02x"):format(char:byte())
  end)
  local keys = ("<Del>"):rep(n_replaced) .. "<C-r><C-o>="
  local typing = vim.keycode(keys) .. '"' .. literal .. '"' .. vim.keycode("<CR>")
  table.insert(accepted, { accepting = unescaped(last_typed), typing = typing })
  vim.api.nvim_feedkeys(typing, "nt", true)
end

---Return a recording without the keys that accepted a text, because the text's own keys follow.
---@param keys string
---@return string
local function without_accepting(keys)
  local at = 1
  for _, each in ipairs(accepted) do
    local first, last = keys:find(each.accepting .. each.typing, at, true)
    if first and last then
      keys = keys:sub(1, first - 1) .. each.typing .. keys:sub(last + 1)
      at = first + #each.typing
    end
  end
  return keys
end

---Watch for recordings.
function M.watch()
  local group = vim.api.nvim_create_augroup("dg-lsp-macro", {})
  local namespace = vim.api.nvim_create_namespace("dg-lsp-macro")
  vim.api.nvim_create_autocmd("RecordingEnter", {
    group = group,
    callback = function()
      accepted = {}
      vim.on_key(function(_, typed)
        if typed and typed ~= "" then
          last_typed = typed
        end
      end, namespace)
    end,
  })
  vim.api.nvim_create_autocmd("RecordingLeave", {
    group = group,
    callback = function()
      vim.on_key(nil, namespace)
      local name, keys = vim.v.event.regname:lower(), vim.v.event.regcontents
      local new = without_accepting(keys)
      if new == keys then
        return
      end
      -- The register is written after this event, behind what it had if its name is in capitals.
      vim.schedule(function()
        local whole = vim.fn.getreg(name)
        if vim.endswith(whole, keys) then
          vim.fn.setreg(name, whole:sub(1, #whole - #keys) .. new)
        end
      end)
    end,
  })
end

return M
