"""The options that git's subcommands may have. What is in no table makes the line opaque, abbreviations too.

Left out is what opens files or runs programs, or asks the user: editors, pagers, signing, helpers, --textconv.
"""

from __future__ import annotations

QUIET = "-q --quiet"
MESSAGE = "-m: --message= -F:read --file=read"
REFS = "--contains[=] --no-contains[=] --merged[=] --no-merged[=] --points-at[=] --sort= --format= --ignore-case"

# Of these the output is names, numbers and messages.
_BRIEF_REVISIONS = (
    "--oneline --graph --decorate[=] --no-decorate --decorate-refs= --decorate-refs-exclude= --all --branches[=]"
    " --tags[=] --remotes[=] --format[=] --pretty[=] --author= --committer= --grep= --since= --after= --until="
    " --before= --max-count= --skip= --merges --no-merges --reverse --first-parent --abbrev-commit --no-abbrev-commit"
    " --abbrev[=] --date= --follow --topo-order --date-order --author-date-order --left-right --cherry-pick"
    " --cherry-mark --boundary --left-only --right-only --walk-reflogs --full-history --simplify-merges"
    " --simplify-by-decoration --ancestry-path[=] --parents --children --source --notes[=] --no-notes --not --count"
    " --regexp-ignore-case --extended-regexp --fixed-strings --perl-regexp --basic-regexp --invert-grep --all-match"
    " --relative-date --mailmap --use-mailmap --no-walk[=] --no-mailmap --exclude= --glob= -n: -# -iEFPgz"
)
_BRIEF_DIFF = (
    "--stat[=] --shortstat --numstat --compact-summary --summary --dirstat[=] --name-only --name-status --raw"
    " --stat-width= --stat-count= --stat-name-width= --color[=] --no-color --relative --no-relative -M[]"
    " --find-renames[=] --no-renames --diff-filter= --no-patch -srR --no-ext-diff --no-textconv --quiet"
)
_DIFF = (
    _BRIEF_DIFF + " -p -u -U[] --unified[=] --patch --patch-with-raw --patch-with-stat --minimal --patience --histogram"
    " --anchored= --diff-algorithm= --cumulative -X[] -z --color-moved[=] --no-color-moved --color-moved-ws="
    " --word-diff[=] --word-diff-regex= --color-words[=] --rename-empty --no-rename-empty --check"
    " --ws-error-highlight= --full-index --binary --abbrev[=] -B[] --break-rewrites[=] -C[] --find-copies[=]"
    " --find-copies-harder -DabwWtcm --irreversible-delete -l: -S: -G: --pickaxe-all --pickaxe-regex --text"
    " --ignore-cr-at-eol --ignore-space-at-eol --ignore-space-change --ignore-all-space --ignore-blank-lines -I:"
    " --ignore-matching-lines= --inter-hunk-context= --function-context --exit-code --ignore-submodules[=]"
    " --submodule[=] --src-prefix= --dst-prefix= --no-prefix --line-prefix= --cc --output=write"
)
_LOG_MORE = " --full-diff -L: --diff-merges= --remerge-diff --no-diff-merges"
BRIEF_LOG = f"{_BRIEF_REVISIONS} {_BRIEF_DIFF}"
LOG = f"{_BRIEF_REVISIONS} {_DIFF} {_LOG_MORE}"
DIFF = f"{_DIFF} --cached --staged --merge-base --no-index -123 -0 -q --base --ours --theirs"
DIFF_PLUMBING = f"{_DIFF} --cached --root --no-commit-id --always -v"
SHORTLOG = "-s -n -e -c -w[] --numbered --email --group= --since= --until= --all --no-merges --format[=] --summary"
REV_LIST = f"{_BRIEF_REVISIONS} --objects --no-commit-header --no-object-names"
BLAME = (
    "-L: -w -s -e -l -t -p -b -f -n -c -k -M[] -C[] --porcelain --line-porcelain --incremental --since= --show-name"
    " --show-number --show-email --root --color-lines --color-by-age --abbrev[=] --date= --progress --no-progress"
    " --first-parent --ignore-rev= --show-stats --score-debug --minimal"
)
GREP = (
    "-niIwvhHlLcEGFPoqzarpW -# -e: -f:read -A: -B: -C: -m: --cached --untracked --no-index --recursive --no-recursive"
    " --exclude-standard --no-exclude-standard --max-depth= --threads= --max-count= --context= --after-context="
    " --before-context= --and --or --not --all-match --color[=] --no-color --break --heading --column --full-name"
    " --show-function --function-context --line-number --ignore-case --word-regexp --invert-match --name-only"
    " --files-with-matches --files-without-match --count --only-matching --quiet --fixed-strings --extended-regexp"
    " --perl-regexp --basic-regexp --text --null --recurse-submodules"
)
STATUS = (
    "-s -b -v -z -u[] --short --branch --porcelain[=] --long --verbose --untracked-files[=] --ignored[=] --show-stash"
    " --ignore-submodules[=] --column[=] --no-column --ahead-behind --no-ahead-behind --renames --no-renames"
    " --find-renames[=]"
)
CAT_FILE = "-p -t -s -e --batch[=] --batch-check[=] --batch-all-objects --buffer --unordered"
ARCHIVE = "-o:write -v -l -# --output=write --format= --prefix= --verbose --list --worktree-attributes"
FORMAT_PATCH = (
    f"{_DIFF} -o:write_below -n -N -k -v: -s -# --output-directory=write_below --stdout --numbered --no-numbered"
    " --start-number= --numbered-files --keep-subject --signoff --thread[=] --no-thread --in-reply-to="
    " --subject-prefix= --rfc --reroll-count= --to= --cc= --cover-letter --no-signature --signature= --quiet"
    " --zero-commit --base= --root --no-binary --attach[=] --inline[=] --filename-max-length="
)
BUNDLE = "-q --quiet --progress --version= --all --all-progress --branches[=] --tags[=] --since= --max-count= -n: -#"
LS_TREE = "-r -d -t -l -z --long --name-only --name-status --full-name --full-tree --abbrev[=] --format= --object-only"
LS_FILES = (
    "-cdmoisuktvfz --cached --deleted --modified --others --ignored --stage --unmerged --killed --directory"
    " --no-empty-directory --error-unmatch --full-name --recurse-submodules --abbrev[=] --exclude-standard"
    " --deduplicate --eol -x: --exclude= --debug --format="
)
CHECK_IGNORE = "-v -q -n -z --verbose --quiet --non-matching --no-index"

ADD = (
    "-A -u -n -v -f -N -p --all --no-all --update --dry-run --verbose --force --intent-to-add --renormalize --patch"
    " --ignore-errors --ignore-missing --refresh --ignore-removal --no-ignore-removal --chmod= --sparse"
)
COMMIT = (
    f"{MESSAGE} -C: --reuse-message= --author= --date= --fixup= --squash= --cleanup= --trailer= -aqvsniopz -u[] --all"
    " --quiet --verbose --signoff --no-signoff --no-verify --amend --no-edit --allow-empty --allow-empty-message"
    " --patch --dry-run --short --porcelain --long --branch --include --only --reset-author --no-gpg-sign"
    " --no-post-rewrite --status --no-status --untracked-files[=]"
)
_STEPS = "--abort --continue --skip --quit"
_MERGING = "-X: --strategy-option= -s: --strategy= --no-gpg-sign --autostash --no-autostash"
MERGE = (
    f"{QUIET} {MESSAGE} {_STEPS} {_MERGING} -v -n --verbose --ff --no-ff --ff-only --squash --no-squash --commit"
    " --no-commit --no-edit --stat --no-stat --log[=] --no-log --allow-unrelated-histories --signoff --no-verify"
    " --progress --no-progress --no-signoff"
)
REBASE = (
    f"{QUIET} {_STEPS} {_MERGING} -v -n -f -m -r[] --verbose --onto= --root --no-verify --keep-base --fork-point"
    " --no-fork-point --rebase-merges[=] --no-rebase-merges --signoff --stat --no-stat --no-ff --force-rebase --apply"
    " --merge --empty= --update-refs --no-update-refs --committer-date-is-author-date --ignore-date --reset-author-date"
    " --reapply-cherry-picks --no-reapply-cherry-picks --autosquash --no-autosquash --no-keep-empty"
)
PICK = (
    f"{_STEPS} -X: --strategy-option= --strategy= -m: --mainline= -x -n -s --no-commit --signoff --ff --no-edit"
    " --allow-empty --allow-empty-message --keep-redundant-commits --no-gpg-sign --cleanup="
)
PULL_OR_FETCH = (
    f"{QUIET} -v -a -f -k -p -P -t -n -j: -4 -6 --verbose --all --append --atomic --depth= --deepen= --shallow-since="
    " --unshallow --dry-run --force --keep --prune --prune-tags --tags --no-tags --jobs= --progress --no-progress"
    " --set-upstream --update-shallow --recurse-submodules[=] --no-recurse-submodules --ipv4 --ipv6 --porcelain"
    " --no-auto-gc --no-auto-maintenance --no-write-fetch-head --multiple"
)
PULL = (
    f"{QUIET} {_MERGING} -v -a -f -k -p -t -j[] -4 -6 -r[] --verbose --all --append --depth= --deepen= --shallow-since="
    " --unshallow --dry-run --force --keep --prune --tags --no-tags --jobs[=] --progress --no-progress --set-upstream"
    " --ff --no-ff --ff-only --rebase[=] --no-rebase --squash --no-squash --commit --no-commit --no-edit --stat"
    " --no-stat --log[=] --allow-unrelated-histories --recurse-submodules[=] --no-recurse-submodules --no-verify"
    " --signoff[=] --ipv4 --ipv6"
)
PUSH = (
    f"{QUIET} -v -n -f -u -d -o: -4 -6 --verbose --all --branches --mirror --tags --follow-tags --force --dry-run"
    " --set-upstream --delete --force-with-lease[=] --no-force-with-lease --force-if-includes --no-verify --porcelain"
    " --progress --no-progress --atomic --no-atomic --prune --push-option= --thin --no-thin --ipv4 --ipv6 --no-signed"
    " --no-follow-tags --verify --recurse-submodules= --no-recurse-submodules"
)
CLONE = (
    f"{QUIET} -v -n -l -s -b: -o: -j: -4 -6 --verbose --progress --no-progress --bare --mirror --local --no-local"
    " --no-hardlinks --shared --branch= --origin= --depth= --shallow-since= --shallow-exclude= --single-branch"
    " --no-single-branch --no-tags --no-checkout --jobs= --filter= --sparse --recurse-submodules[=] --recursive[=]"
    " --shallow-submodules --no-shallow-submodules --also-filter-submodules --ipv4 --ipv6 --reject-shallow"
)
LS_REMOTE = f"{QUIET} -h -t --heads --branches --tags --refs --exit-code --get-url --sort= --symref"
REMOTE = (
    "-v -f -t: -m: -n -d -a --verbose --fetch --tags --no-tags --push --add --delete --all --auto --prune --dry-run"
)

CHECKOUT = (
    f"{QUIET} -b: -B: --orphan= -f -t[] -l -d -m -2 -3 --force --track[=] --no-track --detach --ours --theirs --merge"
    " --conflict= --progress --no-progress --guess --no-guess --overlay --no-overlay --ignore-skip-worktree-bits"
    " --ignore-other-worktrees --recurse-submodules[=] --no-recurse-submodules --overwrite-ignore"
)
SWITCH = (
    f"{QUIET} -c: -C: -d -f -t[] -m --create= --force-create= --orphan= --detach --force --discard-changes --track[=]"
    " --no-track --guess --no-guess --merge --conflict= --progress --no-progress --ignore-other-worktrees"
    " --recurse-submodules[=] --no-recurse-submodules"
)
RESTORE = (
    f"{QUIET} -s: --source= -S -W --staged --worktree -2 -3 --ours --theirs -m --merge --conflict= --progress"
    " --no-progress --ignore-unmerged --overlay --no-overlay --ignore-skip-worktree-bits"
)
RESET = f"{QUIET} -N --soft --mixed --hard --merge --keep --intent-to-add --refresh --no-refresh"
STASH = (
    f"{QUIET} -k -u -a -S -m: --keep-index --no-keep-index --include-untracked --all --message= --staged --index"
    " --no-index --no-include-untracked"
)
CLEAN = f"{QUIET} -f -d -x -X -n -e: --exclude= --force --dry-run"
REMOVE = f"{QUIET} -f -r -n --cached --ignore-unmatch --force --dry-run --sparse"
MOVE = "-f -k -n -v --force --dry-run --verbose --sparse"
APPLY = (
    f"{QUIET} --check --stat --numstat --summary --index --cached -R --reverse -3 --3way -p: --apply --reject -v"
    " --verbose --whitespace= --exclude= --include= --recount --unidiff-zero --allow-empty --allow-overlap -C: -N"
    " --intent-to-add --ignore-whitespace --ignore-space-change --inaccurate-eof --binary --directory="
)
AM = (
    f"{QUIET} --abort --continue --resolved --skip --quit -r -s -k -m -c -3 -p: -C: --signoff --keep --3way --no-3way"
    " --keep-cr --no-keep-cr --scissors --no-scissors --message-id --whitespace= --ignore-space-change"
    " --ignore-whitespace --ignore-date --committer-date-is-author-date --reject --exclude= --include= --no-gpg-sign"
)
WORKTREE = (
    f"{QUIET} -b: -B: -f -d -v -z -n --force --detach --checkout --no-checkout --lock --reason= --track --no-track"
    " --guess-remote --no-guess-remote --porcelain --verbose --dry-run --expire="
)
INIT = f"{QUIET} -b: --bare --initial-branch= --object-format= --shared[=] --ref-format="

BRANCH = (
    f"{QUIET} {REFS} -a -r -v -d -D -m -M -c -C -f -t[] -u: -l -i --all --remotes --verbose --delete --move --copy"
    " --force --track[=] --no-track --set-upstream-to= --unset-upstream --list --show-current --abbrev[=] --no-abbrev"
    " --column[=] --no-column --color[=] --no-color --create-reflog --omit-empty"
)
TAG = f"{REFS} {MESSAGE} -l -a -d -f -i -n[] --list --annotate --delete --force --column[=] --no-column --color[=]"
CONFIG = (
    "-l -z --get --get-all --get-regexp --list --local --add --replace-all --unset --unset-all --type= --bool --int"
    " --bool-or-int --default= --null --name-only --show-origin --show-scope --fixed-value --includes"
    " --no-includes"
)
NOTES = f"{MESSAGE} -f --force --allow-empty"

REFS_ONLY = {
    "branch": BRANCH,
    "rev-parse": f"{QUIET} --abbrev-ref[=] --short[=] --show-toplevel --git-dir --is-inside-work-tree --verify --all"
    " --symbolic --symbolic-full-name --show-prefix --show-cdup --absolute-git-dir --git-common-dir"
    " --is-bare-repository --is-inside-git-dir --is-shallow-repository --branches[=] --tags[=] --remotes[=]"
    " --show-superproject-working-tree --revs-only --no-revs --flags --no-flags --path-format=",
    "rev-list": REV_LIST,
    "describe": "--tags --all --always --long --abbrev[=] --match= --exclude= --dirty[=] --broken[=] --contains"
    " --exact-match --candidates= --first-parent",
    "symbolic-ref": f"{QUIET} -d -m: --short --delete --recurse --no-recurse",
    "for-each-ref": f"{REFS} --count= --color[=] --omit-empty",
    "show-ref": f"{QUIET} -d -s[] --head --heads --branches --tags --hash[=] --abbrev[=] --verify --dereference",
    "merge-base": "-a --all --is-ancestor --octopus --independent --fork-point",
    "name-rev": "--tags --refs= --exclude= --name-only --always --all --no-undefined",
    "count-objects": "-v -H --verbose --human-readable",
    "fsck": "--full --strict --dangling --no-dangling --progress --no-progress --connectivity-only --unreachable -v",
    "gc": f"{QUIET} --auto --aggressive --force --prune[=] --no-prune",
    "prune": "-n -v --dry-run --verbose --expire=",
    "version": "--build-options",
    "cherry": "-v --abbrev[=]",
}
"""Subcommands that show and change nothing but names of revisions and messages."""
