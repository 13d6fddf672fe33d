#!/usr/bin/env bash
# Whether words that left have come back:
#
#   dev/check_words.sh [FILE...]
#
# Identifiers and phrases of the table below, in any source, script or page but records, fixtures and CHANGELOG.md.
# Plain words that only sometimes are a coinage are not in it; docs/glossary.md has the field's words. One line for each
# fault, with what to say instead; 1 if there are any.
set -u
export LC_ALL=C.UTF-8
# A pattern of grep -E, two spaces or more, what to say.
table=$(sed -E 's/ {2,}/\t/' <<'END'
\b[a-z_]*refus(e|ed|es|al|als)_      reject, rejected, rejection
_refus(e|ed|es|al|als)\b             reject, rejected, rejection
\bREFUSED?\b                         REJECT, REJECTED
(is|are|be|not) refused\b            rejected
(^|[ "])notice: [^ ]                 warning:
\b[a-z]+_notices?\b                  warning
\bDataNotices?\b                     DataWarnings
[^-]\b[Mm]ultiprocessors\b           SMs
\bgo(es)? on (with|from|without)\b   continue, resume
(MiB|MB|bytes|tokens) a rank\b       per rank
(tokens|sequences|microbatch) a step per step
heads of k and v                     KV heads
columns of a head                    head dim
[Ll]ikeliest                         most probable
\b(are|is|cores) dealt\b             assigned
never alive at once                  disjoint live ranges
sums along (the )?hosts              inter-node reduction chain
sums that travel                     inter-node reduction chain
order of sums                        summation order
warpgroup multipl(y|ies)             WGMMA
begin(ning)? token                   BOS token
line's end\b[^a-z]                   newline
as (they|it) lies?\b                 as stored
[^a-z]check[-_](rooms|doors)\.sh     check_modules.sh, check_public_headers.sh
the door of [a-z]                    the public header of
make goal                            make target
no form that is known                no known schema
_MOST\b.*enum|enum.*_MOST\b          _MAX
END
)
pattern=$(cut -f 1 <<<"$table" | paste -sd '|')
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(git ls-files -co --exclude-standard |
  grep -E '\.(h|cu|cuh|cc|sh|py|js|md)$|^Makefile$|^\.ci/run$' |
  grep -vE '(^|/)fixtures/|^dev/(results/|cuda_emu/|check_words\.sh)|^CHANGELOG\.md$|^docs/glossary\.md$')
hits=$(grep -snE "$pattern" /dev/null "${files[@]}")
[ -n "$hits" ] || exit 0
while read -r hit; do
  while IFS=$'\t' read -r one say; do
    grep -qE "$one" <<<"${hit#*:*:}" && echo "$hit: say \"$say\""
  done <<<"$table"
done <<<"$hits" >&2
echo "check-words: the lines above have words that left" >&2
exit 1
