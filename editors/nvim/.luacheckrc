std = "luajit"
cache = false
max_line_length = 120
read_globals = { "vim" }
-- Buffer and global variables and options are set through these tables.
globals = { "vim.b", "vim.bo", "vim.g", "vim.o", "vim.v", "vim.wo", "vim.opt" }
