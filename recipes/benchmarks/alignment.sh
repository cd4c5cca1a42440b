#!/usr/bin/env bash
# Makes and measures the alignments of alignment.py: `recipes/benchmarks/alignment.sh GOLD MODEL EFLOMAL`, from the repository's root.
# GOLD holds `en.gz`, `fr.gz` and `gold.gz`. MODEL is that of recipes/configs/alignment_en_fr.yaml; it keeps the heads that are
# chosen here, on the texts of GOLD. EFLOMAL is the program eflomal-align: `pip install eflomal==2.0.0`, in an environment of its own.
# It aligns runs/all.{en,fr} of that configuration, but of the statutes one in ten: two processor minutes.
set -euo pipefail
gold=$1 model=$2 eflomal=$3 work=runs/alignment
mkdir -p $work

measure() {  # name: measures forward, and turned, whose links have the target first
    sed -E 's/([0-9]+)-([0-9]+)/\2-\1/g' $work/turned > $work/backward
    python recipes/benchmarks/alignment.py --name "$1" --gold "$gold/gold.gz" --forward $work/forward --backward $work/backward \
        --output $work  # in model_cards/ they would be changes of the commit that the next record names
}

diagonal() {  # languages: links of each word of the second to the word of the first at the same share of the sentence
    paste <(zcat "$gold/$1.gz") <(zcat "$gold/$2.gz") | awk -F '\t' '{
        m = split($1, source, " "); n = split($2, target, " ")
        for (j = 0; j < n; j++) printf "%d-%d ", (j + 0.5) * m / n, j
        print "" }'
}

align() {  # options of align.py: aligns in both directions
    rm -f $work/forward $work/turned
    languages="--source_language en --target_language fr --corpus $gold/en.gz $gold/fr.gz"
    python recipes/align.py --model "$model" $languages --output $work/forward "$@"
    languages="--source_language fr --target_language en --corpus $gold/fr.gz $gold/en.gz"
    python recipes/align.py --model "$model" $languages --output $work/turned "$@"
}

gold_tokens() {  # language: lower case and tokens like those of the gold, which writes French "du" and "qu'il" as "de le", "que il"
    awk 'NR <= 136849 || NR <= 544536 && NR % 10 == 0' "runs/all.$1" | python -c '
import gzip, re, sys
from sacremoses import MosesTokenizer
tokenizer = MosesTokenizer(sys.argv[1])
whole = {"du": "de le", "des": "de les", "au": "à le", "aux": "à les"} if sys.argv[1] == "fr" else {}
for line in sys.stdin:
    text = " ".join(tokenizer.tokenize(line.replace("’", "\x27"), aggressive_dash_splits=True, escape=False)).lower()
    text = text.replace("@-@", "-")
    if whole:
        text = re.sub(r"(?<!\S)([cdjlmnst]|qu|jusqu|lorsqu|puisqu)\x27(?!\S)", r"\1e", text)
        text = " ".join(whole.get(word, word) for word in text.split())
    else:
        text = text.replace("can \x27t", "can not").replace("won \x27t", "will not").replace("n \x27t", " not")
    print(text)
for line in gzip.open(sys.argv[2], "rt", encoding="utf-8"):
    print(line.strip().lower())' "$1" "$gold/$1.gz"
}

diagonal en fr > $work/forward
diagonal fr en > $work/turned
measure "the diagonal"

align
measure "all heads of the last layer"
align --reverse_model "$model" --choose_pairs 200
measure "product of both directions"
align
measure "chosen heads"

for language in en fr; do gold_tokens $language > $work/all.$language; done
"$eflomal" --overwrite -s $work/all.en -t $work/all.fr -f $work/links -r $work/reverse
tail -n 447 $work/links > $work/forward
tail -n 447 $work/reverse | sed -E 's/([0-9]+)-([0-9]+)/\2-\1/g' > $work/turned
measure "eflomal 2.0.0"
cp $work/alignment.{md,json} model_cards/benchmarks/
