;;; dg-lsp-tests.el --- The package in a real Emacs  -*- lexical-binding: t; -*-

;; Run by test_emacs.py, which creates the folder and sets the environment.  lsp-mode, the server, the engine and the
;; embedded model are all real.

;;; Code:

(require 'ert)
(require 'cl-lib)

(defvar tests-folder (expand-file-name default-directory))

(setq user-emacs-directory (expand-file-name ".emacs.d/" tests-folder)
      lsp-session-file (expand-file-name "session" tests-folder)
      ;; One server for all of these tests.
      lsp-keep-workspace-alive t
      lsp-enable-suggest-server-download nil
      lsp-enable-snippet nil
      lsp-warn-no-matched-clients nil
      lsp-completion-provider :none
      lsp-auto-guess-root t
      ;; No other server for Python.
      lsp-client-packages nil
      lsp-enabled-clients '(dg-lsp)
      ;; Not lsp-mode's flymake: Python's checker signals "Selecting deleted buffer" when a test closes its buffer early.
      lsp-diagnostics-provider :none
      make-backup-files nil
      create-lockfiles nil
      python-indent-guess-indent-offset-verbose nil)

;; An installed lsp-mode has autoloads for these.
(dolist (part '(lsp-modeline lsp-lens lsp-headerline lsp-diagnostics lsp-completion lsp-semantic-tokens))
  (require part))
(require 'dg-lsp)

;; Show every suggestion, whatever its probability and latency, because these tests are about editors.
(setq dg-lsp-threshold 0.0
      lsp-response-timeout 90)
(lsp-register-custom-settings '(("dgLsp.completion.deadline" 60000) ("dgLsp.actions.deadline" 60000)))

(defun tests-until (predicate description)
  "Return the value of PREDICATE as soon as it is true.
Fail with DESCRIPTION when that takes too long."
  (let ((end (+ (float-time) 120)) value)
    (while (and (not (setq value (funcall predicate))) (< (float-time) end))
      (accept-process-output nil 0.05))
    (or value (ert-fail (format "waited for %s: %S, %s" description (buffer-string) (dg-lsp-status-text))))))

(defun tests-open (name text)
  "Write TEXT into a file NAME, open it, and wait for the engine."
  (let ((path (expand-file-name name tests-folder))
        (coding-system-for-write 'utf-8-unix))
    (with-temp-file path (insert text))
    (find-file path)
    (lsp-workspace-folders-add tests-folder)
    (lsp)
    (tests-until (lambda ()
                   (and (lsp-feature? "textDocument/inlineCompletion")
                        dg-lsp--status
                        (equal (lsp-get dg-lsp--status :state) "ready")))
                 "the engine")
    path))

(defun tests-shown ()
  "Return the suggestion on the screen."
  (let ((overlay lsp-inline-completion--overlay))
    (and (overlayp overlay) (substring-no-properties (or (overlay-get overlay 'after-string) "")))))

(defconst tests-shop
  "class Cart:
    def __init__(self):
        self.items = []

    def add(self, item):
        self.

cart = Cart()
cart.add(\"tea\")
print(cart.items)
")

(ert-deftest tests-a-server-gets-no-relative-folders ()
  (let ((process-environment (append '("PATH=.:bin:/bin" "PYTHONPATH=.::/x") process-environment)))
    (should (equal (dg-lsp--environment) '(("PYTHONSAFEPATH" . "1") ("PATH" . "/bin") ("PYTHONPATH" . "/x"))))))

(ert-deftest tests-a-suggestion-is-shown-and-accepted ()
  (tests-open "shop.py" tests-shop)
  (search-forward "        self.\n")
  (backward-char)
  (let* ((before (buffer-string)) (start (point)) (rest (buffer-substring (point) (point-max))))
    (lsp-inline-completion-display)
    (should (not (string-empty-p (or (tests-shown) ""))))
    (lsp-inline-completion-accept)
    (should-not (equal (buffer-string) before))
    (should (string-prefix-p (substring before 0 (1- start)) (buffer-string)))
    (should (string-suffix-p rest (buffer-string))))
  (set-buffer-modified-p nil)
  (kill-buffer))

(defconst tests-item
  "class Item:
    def __init__(self, name, price, size):
        self.name = name
        self.price = price
        self.size = size

    def get_size(self):
        return self.size

    def get_name(self):
        ...

    def get_price(self):
        ...
")

;; Nothing in it repeats, so that the body is written in several passes.
(defconst tests-several-passes
  "def total_price(items, rate):
    \"\"\"Return the sum of the prices of all items, with a tax of this rate.\"\"\"
    ...
")

(defun tests-table (plist)
  "Return PLIST as the hash table of a message, with nested ones."
  (let ((table (make-hash-table :test 'equal)))
    (while plist
      (let ((value (cadr plist)))
        (puthash (substring (symbol-name (car plist)) 1) (if (consp value) (tests-table value) value) table))
      (setq plist (cddr plist)))
    table))

(defun tests-count (text)
  "Return how often TEXT occurs in the buffer."
  (save-excursion (goto-char (point-min)) (how-many (regexp-quote text))))

(ert-deftest tests-a-fill-shows-drafts-and-is-one-undo-step ()
  (tests-open "body.py" tests-several-passes)
  (let ((drafts nil))
    (add-hook 'dg-lsp-draft-hook
              (lambda ()
                (push (mapconcat (lambda (overlay) (substring-no-properties (or (overlay-get overlay 'display) "")))
                                 dg-lsp--overlays "|")
                      drafts))
              nil t)
    (buffer-enable-undo)
    (search-forward "...")
    (undo-boundary)
    (dg-lsp-fill)
    (tests-until (lambda () (= (tests-count "...") 0)) "the filled body")
    (tests-until (lambda () (null dg-lsp--overlays)) "the drafts to go")
    (should (>= (length (delete-dups (delete "" drafts))) 2))
    (undo-boundary)
    (undo)
    (should (equal (buffer-string) tests-several-passes)))
  (set-buffer-modified-p nil)
  (kill-buffer))

(ert-deftest tests-all-holes-are-filled ()
  (tests-open "all.py" tests-item)
  (dg-lsp-fill-buffer)
  (tests-until (lambda () (= (tests-count "...") 0)) "the filled bodies")
  (set-buffer-modified-p nil)
  (kill-buffer))

(ert-deftest tests-a-code-action-is-applied ()
  (tests-open "action.py" tests-item)
  (search-forward "...")
  (let ((action (seq-find (lambda (each) (string-prefix-p "Fill function body" (lsp-get each :title)))
                          (lsp-code-actions-at-point))))
    (should action)
    (lsp-execute-code-action action)
    (tests-until (lambda () (= (tests-count "...") 1)) "the filled body"))
  (set-buffer-modified-p nil)
  (kill-buffer))

(ert-deftest tests-a-suggestion-after-wide-characters-is-inserted-in-place ()
  (tests-open "wide.py" (string-replace "self.\n" "x = '😀日本語'; value = self.\n" tests-shop))
  (search-forward "; value = self.")
  (let* ((start (point)) (head (buffer-substring (point-min) start)) (rest (buffer-substring start (point-max))))
    (lsp-inline-completion-display)
    (should (tests-shown))
    (lsp-inline-completion-accept)
    (should (string-prefix-p head (buffer-string)))
    (should (string-suffix-p rest (buffer-string))))
  (set-buffer-modified-p nil)
  (kill-buffer))

(ert-deftest tests-files-of-secrets-get-nothing-and-the-status-shows-the-reason ()
  (tests-open "credentials.py" "PASSWORD = \n")
  (search-forward "= ")
  (lsp-inline-completion-display)
  (should-not (tests-shown))
  (tests-until (lambda () (string-match-p "secrets" (dg-lsp-status-text))) "the reason")
  (should (equal (dg-lsp-mode-line) " DG Ready"))
  (let ((status dg-lsp--status))
    (should (string-prefix-p "Ready: the engine is ready, with model embedded." (dg-lsp-status-text)))
    (dolist (case '(("Paused" . (:state "ready" :suppressed (:code "manual")))
                    ("Working" . (:state "ready" :busy t))
                    ("Working" . (:state "loading"))
                    ("Ready" . (:state "off"))
                    ("Problem" . (:state "failed"))))
      (setq dg-lsp--status (if lsp-use-plists (cdr case) (tests-table (cdr case))))
      (should (equal (dg-lsp-mode-line) (concat " DG " (car case)))))
    ;; The last case.
    (should (string-prefix-p "Problem: the engine has failed, with model " (dg-lsp-status-text)))
    (setq dg-lsp--status status))
  (set-buffer-modified-p nil)
  (kill-buffer))

(ert-deftest tests-a-draft-is-removed-when-its-server-ends ()
  (tests-open "gone.py" tests-item)
  (let ((lsp-restart 'ignore) killed)
    (add-hook 'dg-lsp-draft-hook
              (lambda ()
                (unless killed
                  (setq killed t)
                  (signal-process (lsp--workspace-proc (dg-lsp--workspace)) 'SIGKILL)))
              nil t)
    (search-forward "...")
    (dg-lsp-fill)
    (tests-until (lambda () killed) "a draft")
    (tests-until (lambda () (null dg-lsp--status)) "the server's end")
    (should-not (seq-filter (lambda (overlay) (overlay-get overlay 'dg-lsp))
                            (overlays-in (point-min) (point-max)))))
  (set-buffer-modified-p nil)
  (kill-buffer))

(ert-deftest tests-a-command-that-cannot-fill-reports-an-error-at-once ()
  (with-temp-buffer
    (dolist (command '(dg-lsp-fill dg-lsp-fill-buffer dg-lsp-regenerate dg-lsp-repair dg-lsp-docstring))
      (should (string-match-p "is not running" (cadr (should-error (call-interactively command) :type 'user-error)))))
    (setq buffer-read-only t)
    (dolist (command '(dg-lsp-fill dg-lsp-fill-buffer dg-lsp-regenerate dg-lsp-repair dg-lsp-docstring))
      (should-error (call-interactively command) :type 'buffer-read-only)))
  (tests-open "nothing.py" tests-item)
  (should (equal (cadr (should-error (call-interactively #'dg-lsp-regenerate) :type 'user-error)) "Nothing is selected"))
  (set-buffer-modified-p nil)
  (kill-buffer))

(provide 'dg-lsp-tests)
;;; dg-lsp-tests.el ends here
