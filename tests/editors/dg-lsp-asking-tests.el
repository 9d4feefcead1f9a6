;;; dg-lsp-asking-tests.el --- Questions before a fill and reports after it  -*- lexical-binding: t; -*-

;; Run by test_emacs.py, with an engine that gives the answers written in the text.

;;; Code:

(load (expand-file-name "dg-lsp-tests.el" (getenv "DG_LSP_TESTS")))
(setq dg-lsp-command (list (getenv "DG_LSP_PYTHON") "-m" "dg_lsp" "serve" "--engine" "tests.server.scripted:engine"))

(defvar asking-number 0)

(defun asking-fill (answer accepted)
  "Regenerate a working line with ANSWER; the user replies ACCEPTED.
Return the question and the text afterwards."
  (let ((text (concat "# engine: {\"text\": \"" answer "\"}\ndef f(count):\n    return count + 1\n"))
        questions)
    (tests-open (format "asking%d.py" (cl-incf asking-number)) text)
    (goto-char (point-min))
    (search-forward "return count")
    (set-mark (match-beginning 0))
    (goto-char (line-end-position))
    (activate-mark)
    (let ((inhibit-message t) (answered nil))
      (cl-letf (((symbol-function 'y-or-n-p) (lambda (question) (push question questions) accepted))
                ((symbol-function 'dg-lsp--report-fills) (lambda (result) (setq answered result))))
        (dg-lsp-regenerate "")
        (tests-until (lambda () answered) "the answer")))
    (cons (car questions) (buffer-string))))

(ert-deftest asking-before-working-code-is-replaced-by-less-code ()
  (pcase-let ((`(,question . ,text) (asking-fill "pass" t)))
    (should (string-search "replaces working code by less" question))
    (should (string-suffix-p "    pass\n" text)))
  (pcase-let ((`(,_ . ,text) (asking-fill "pass" nil)))
    (should (string-suffix-p "    return count + 1\n" text))))

(ert-deftest asking-no-question-if-no-code-is-lost ()
  (pcase-let ((`(,question . ,text) (asking-fill "return 2" nil)))
    (should-not question)
    (should (string-suffix-p "    return 2\n" text))))

(ert-deftest asking-fills-of-a-whole-file-end-with-a-list ()
  (tests-open "all.py" "# engine: {\"texts\": [\"return 1\", \"return 22\"]}\ndef f():\n    ...\n\n\ndef g():\n    ...\n")
  (dg-lsp-fill-buffer)
  (tests-until (lambda () (get-buffer "*dg-lsp fills*")) "the list")
  (with-current-buffer "*dg-lsp fills*"
    (should (string-search "2 of 2 holes filled\nall.py:3: 90 %: return 1\nall.py:7: 90 %: return 22\n"
                           (buffer-string)))))

(ert-deftest asking-the-list-of-a-whole-file-counts-the-holes-that-stayed-empty ()
  (when (get-buffer "*dg-lsp fills*")
    (kill-buffer "*dg-lsp fills*"))
  ;; Nothing binds `total' in the second function.
  (tests-open "some.py" "# engine: {\"text\": \"return total\"}\ndef f(total):\n    ...\n\n\ndef g():\n    ...\n")
  (dg-lsp-fill-buffer)
  (tests-until (lambda () (get-buffer "*dg-lsp fills*")) "the list")
  (with-current-buffer "*dg-lsp fills*"
    (should (string-search "1 of 2 holes filled\nsome.py:3: 90 %: return total\n" (buffer-string)))))

;;; dg-lsp-asking-tests.el ends here
