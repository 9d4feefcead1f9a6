-- Commands, <Plug> maps and highlights. The plugin's other modules are loaded when one of them is used.

if vim.g.loaded_dg_lsp then
  return
end
vim.g.loaded_dg_lsp = true

require("dg_lsp.colours").define()

---@type table<string, fun(arguments: string[])>
local commands = {
  status = function()
    require("dg_lsp.status").show()
  end,
  pause = function(arguments)
    require("dg_lsp").pause(arguments[1])
  end,
  resume = function(arguments)
    require("dg_lsp").resume(arguments[1])
  end,
  model = function(arguments)
    if arguments[1] then
      require("dg_lsp").use_model(arguments[1])
    else
      local status = require("dg_lsp").status()
      vim.api.nvim_echo({ { status and status.model or "dg-lsp is not running for this buffer." } }, true, {})
    end
  end,
  pull = function(arguments)
    require("dg_lsp.pull").run(arguments[1])
  end,
  snooze = function(arguments)
    require("dg_lsp").snooze(tonumber(arguments[1]))
  end,
  restart = function()
    require("dg_lsp").restart()
  end,
  next = function()
    require("dg_lsp").next_edit()
  end,
  reject = function()
    require("dg_lsp").reject_edit()
  end,
  repair = function()
    require("dg_lsp.fill").repair()
  end,
  docstring = function()
    require("dg_lsp.fill").docstring()
  end,
  cancel = function()
    require("dg_lsp.fill").cancel()
  end,
  log = function()
    vim.cmd.edit(vim.lsp.log.get_filename())
  end,
}

vim.api.nvim_create_user_command("Dg", function(call)
  local command = commands[call.fargs[1]]
  if not command then
    local names = vim.tbl_keys(commands)
    table.sort(names)
    require("dg_lsp.server").notify(
      ("unknown subcommand :Dg %s; the subcommands are %s"):format(call.fargs[1], table.concat(names, ", ")),
      "ERROR"
    )
    return
  end
  command(vim.list_slice(call.fargs, 2))
end, {
  nargs = "+",
  desc = "dg-lsp: status, pause, resume, snooze, model, pull, restart, next, reject, repair, docstring, cancel, log",
  complete = function(lead, line)
    local names = line:match("^%s*Dg%s+%S*$") and vim.tbl_keys(commands)
      or line:match("^%s*Dg%s+pull%s+%S*$") and { "never" }
      or line:match("^%s*Dg%s+%a+%s+%S*$") and { vim.bo.filetype }
      or {}
    table.sort(names)
    return vim.tbl_filter(function(name)
      return vim.startswith(name, lead)
    end, names)
  end,
})

vim.api.nvim_create_user_command("DgModel", function(call)
  local models = require("dg_lsp.models")
  if call.args ~= "" then
    models.use(call.args)
  else
    models.choose()
  end
end, {
  nargs = "?",
  desc = "dg-lsp: choose a model that fits this machine, for all editors",
})

vim.api.nvim_create_user_command("DgFill", function(call)
  local fill = require("dg_lsp.fill")
  if call.range > 0 then
    fill.regenerate(call.line1, call.line2, call.args)
  elseif call.args ~= "" then
    vim.notify("dg-lsp: an instruction needs a range, as in :'<,'>DgFill sort by name", vim.log.levels.ERROR)
  elseif call.bang then
    fill.all()
  else
    fill.here()
  end
end, {
  bang = true,
  range = true,
  nargs = "*",
  desc = "dg-lsp: fill at the cursor; with !, all holes of the buffer; with a range, regenerate its lines",
})

for name, method in pairs({
  accept = "accept",
  ["accept-word"] = "accept_word",
  ["accept-line"] = "accept_line",
  next = "next",
  previous = "previous",
  dismiss = "dismiss",
  reveal = "reveal",
  request = "request",
}) do
  vim.keymap.set("i", ("<Plug>(dg-lsp-%s)"):format(name), function()
    require("dg_lsp")[method]()
  end, { desc = "dg-lsp: " .. name:gsub("-", " ") })
end
for name, method in pairs({ ["next-edit"] = "next_edit", ["reject-edit"] = "reject_edit" }) do
  vim.keymap.set({ "n", "i" }, ("<Plug>(dg-lsp-%s)"):format(name), function()
    require("dg_lsp")[method]()
  end, { desc = "dg-lsp: " .. name:gsub("-", " ") })
end
vim.keymap.set("n", "<Plug>(dg-lsp-fill)", "<Cmd>DgFill<CR>", { desc = "dg-lsp: fill at the cursor" })
vim.keymap.set("n", "<Plug>(dg-lsp-fill-all)", "<Cmd>DgFill!<CR>", { desc = "dg-lsp: fill all holes" })
vim.keymap.set("x", "<Plug>(dg-lsp-fill)", ":DgFill<CR>", { desc = "dg-lsp: regenerate the selection" })
