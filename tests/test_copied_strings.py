from vaswani_transformer.data.copied_strings import copied_strings


def found(text):
    return [(kind, match[0]) for kind, match in copied_strings(text)]


def test_each_kind_is_found_where_it_stands():
    assert found("Write to a.b+c@example.org or see https://example.org/x?y=1.") == [
        ("e-mail addresses", "a.b+c@example.org"),
        ("URLs", "https://example.org/x?y=1"),
    ]
    assert found("%s of {name} cost <b>1,249.99</b> at 14:35.") == [
        ("placeholders", "%s"),
        ("placeholders", "{name}"),
        ("placeholders", "<b>"),
        ("numbers", "1,249.99"),
        ("placeholders", "</b>"),
        ("numbers", "14:35"),
    ]
    assert found("100 % sicher, 5 < 6 and a%b") == [("numbers", "100"), ("numbers", "5"), ("numbers", "6")]


def test_an_emoji_of_several_characters_is_one():
    family = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
    thumb = "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"
    assert found(f"{family}, {thumb}\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}") == [
        ("emoji", family),
        ("emoji", thumb),
        ("emoji", "\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}"),
    ]
