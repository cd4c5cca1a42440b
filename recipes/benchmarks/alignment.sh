#!/usr/bin/env bash
# Makes and measures the alignments of alignment.py: `recipes/benchmarks/alignment.sh GOLD MODEL [EFLOMAL]`, from the repository's
# root. GOLD holds `en.gz`, `fr.gz` and `gold.gz`. MODEL is that of recipes/configs/alignment_en_fr.yaml; it keeps the heads that are
# chosen here, on the texts of GOLD. EFLOMAL is the program eflomal-align (`pip install eflomal==2.0.0`), which is fitted to
# runs/all.{en,fr} of that configuration, with one in ten of the statutes: on one core all take hours.
set -euo pipefail
gold=$1 model=$2 eflomal=${3:-eflomal-align} work=runs/alignment
mkdir -p $work

measure() {  # name: measures forward, and turned, whose links have the target first
    sed -E 's/([0-9]+)-([0-9]+)/\2-\1/g' $work/turned > $work/backward
    python recipes/benchmarks/alignment.py --name "$1" --gold "$gold/gold.gz" --forward $work/forward --backward $work/backward
}

diagonal() {  # languages: links of each word of the second to the word of the first at the same share of the sentence
    paste <(zcat "$gold/$1.gz") <(zcat "$gold/$2.gz") | awk -F '\t' '{
        m = split($1, source, " "); n = split($2, target, " ")
        for (j = 0; j < n; j++) printf "%d-%d ", (j + 0.5) * m / n, j
        print "" }'
}

diagonal en fr > $work/forward
diagonal fr en > $work/turned
measure "the diagonal"
