//! Tests: the results of templates, and which templates are rejected.

use super::*;
use crate::rule::instance::ExpansionContext;

fn expanded(text: &str, value: f64) -> Result<String, TemplateError> {
    let labels = Labels::new([
        ("gpu", "3"),
        ("instance", "n1.example.org:9100"),
        ("job", "train me"),
        ("node", "n1"),
    ])
    .expect("well formed");
    let answers = |text: &str| match text {
        "up" => Ok(["b", "a"]
            .into_iter()
            .zip([1.0, 0.5])
            .map(|(node, value)| (Labels::new([("node", node)]).expect("well formed"), value))
            .collect()),
        "none" => Ok(vec![]),
        text => Err(format!("invalid query: {text}")),
    };
    let external = Labels::new([("cluster", "c1")]).expect("well formed");
    let data = Data {
        labels: &labels,
        value,
        context: ExpansionContext {
            external_labels: &external,
            external_url: "https://lockstep.example/a/b",
            now_ms: 1_435_781_451_781,
            query: &answers,
        },
    };
    Template::parse(text)?.expand(&data)
}

fn check(cases: &[(&str, f64, &str)]) {
    for (text, value, expected) in cases {
        assert_eq!(expanded(text, *value).as_deref(), Ok(*expected), "{text}");
    }
}

#[test]
fn labels_and_values_are_filled_in() {
    check(&[
        ("plain", 1.0, "plain"),
        ("", 1.0, ""),
        ("GPU {{ $labels.gpu }} of {{$labels.node}}", 1.0, "GPU 3 of n1"),
        ("{{ .Labels.gpu }} {{ .Value }}", 1.5, "3 1.5"),
        (
            "{{ $.Labels.gpu }} {{ $ExternalURL := 1 }}{{ $externalURL }}",
            1.0,
            "3 https://lockstep.example/a/b",
        ),
        ("{{ $labels.none }}.", 1.0, "."),
        (
            "{{ $externalLabels.cluster }} {{ .ExternalLabels.cluster }} {{ externalURL }} {{ pathPrefix }}",
            1.0,
            "c1 c1 https://lockstep.example/a/b /a/b",
        ),
        ("{{ $value }}", 0.25, "0.25"),
        ("{{ $value }}", 1e6, "1e+06"),
        ("{{ $value }}", f64::NAN, "NaN"),
        ("{{ index $labels \"gpu\" }} {{ len $labels }}", 1.0, "3 4"),
        (
            "{{ $labels }}",
            1.0,
            "map[gpu:3 instance:n1.example.org:9100 job:train me node:n1]",
        ),
    ]);
}

#[test]
fn numbers_are_made_readable() {
    check(&[
        ("{{ $value | humanizePercentage }}", 0.1234, "12.34%"),
        ("{{ $value | humanizePercentage }}", 150.0, "1.5e+04%"),
        ("{{ $value | humanize }}", 1_234_567.0, "1.235M"),
        ("{{ $value | humanize }}", 0.0123, "12.3m"),
        ("{{ $value | humanize }}", 0.0, "0"),
        ("{{ $value | humanize }}", f64::INFINITY, "+Inf"),
        ("{{ humanize \"1500\" }}", 1.0, "1.5k"),
        ("{{ $value | humanize1024 }}", 1_572_864.0, "1.5Mi"),
        ("{{ $value | humanize1024 }}", 0.5, "0.5"),
        ("{{ $value | humanizeDuration }}", 95.0, "1m 35s"),
        ("{{ $value | humanizeDuration }}", 3_605.0, "1h 0m 5s"),
        ("{{ $value | humanizeDuration }}", -90_061.0, "-1d 1h 1m 1s"),
        ("{{ $value | humanizeDuration }}", 12.345_67, "12.35s"),
        ("{{ $value | humanizeDuration }}", 0.25, "250ms"),
        ("{{ $value | humanizeDuration }}", 0.0, "0s"),
        (
            "{{ $value | humanizeTimestamp }}",
            1_435_065_584.128,
            "2015-06-23 13:19:44.128 +0000 UTC",
        ),
        (
            "{{ ($value | toTime).Format \"2006-01-02 15:04\" }}",
            1_435_781_451.0,
            "2015-07-01 20:10",
        ),
        (
            "{{ (toTime $value).Year }} {{ $t := $value | toTime }}{{ $t.Weekday }}",
            0.0,
            "1970 Thursday",
        ),
        ("{{ $value | toTime }}", -1.0, "1969-12-31 23:59:59 +0000 UTC"),
        ("{{ $value | toDuration }}", 3_900.0, "1h5m0s"),
        ("{{ parseDuration \"1h30m\" }}", 1.0, "5400"),
        ("{{ now }}", 1.0, "1.435781451781e+09"),
    ]);
}

#[test]
fn numbers_are_printed_as_go_prints_them() {
    check(&[
        (r#"{{ $value | printf "%.2f" }}"#, 1.0, "1.00"),
        (
            r#"{{ printf "%s is at %.1f%%" $labels.node $value }}"#,
            91.25,
            "n1 is at 91.2%",
        ),
        (
            r#"{{ printf "%5.1f|%-5d|%05d|%+d" $value 3 42 7 }}"#,
            2.0,
            "  2.0|3    |00042|+7",
        ),
        (
            r#"{{ printf "%g %e %v" $value $value $value }}"#,
            1e21,
            "1e+21 1.000000e+21 1e+21",
        ),
        (r#"{{ printf "%v" $value }}"#, 123_456.0, "123456"),
        (r#"{{ printf "%q %x" "a\"b" "az" }}"#, 1.0, r#""a\"b" 617a"#),
        (r#"{{ printf "%d" $value }}"#, 1.5, "%!d(float64=1.5)"),
        (r#"{{ printf "%d %s" 1 }}"#, 1.0, "1 %!s(MISSING)"),
        (r#"{{ printf "x" 1 }}"#, 1.0, "x%!(EXTRA int=1)"),
        (r#"{{ printf "%.3g" $value }}"#, 1234.0, "1.23e+03"),
        (r#"{{ printf "%.0f" $value }}"#, 2.5, "2"),
        (r#"{{ print 1 2 "a" "b" 3 }}"#, 1.0, "1 2ab3"),
        (
            "{{ 0x10 }} {{ 1e3 }} {{ -2 }} {{ 'a' }} {{ `raw` }} {{ true }}",
            1.0,
            "16 1000 -2 97 raw true",
        ),
    ]);
}

#[test]
fn texts_are_changed() {
    check(&[
        ("{{ $labels.instance | stripPort }}", 1.0, "n1.example.org"),
        ("{{ $labels.instance | stripDomain }}", 1.0, "n1:9100"),
        (
            "{{ stripPort \"[::1]:80\" }} {{ stripPort \"::1\" }} {{ stripDomain \"10.0.0.1:80\" }}",
            1.0,
            "::1 ::1 10.0.0.1:80",
        ),
        (
            "{{ $labels.job | title }} {{ toUpper \"a\" }}{{ \"B\" | toLower }}",
            1.0,
            "Train Me Ab",
        ),
        (
            r#"{{ reReplaceAll "(.*):(\\d+)" "$2 of ${1}" $labels.instance }}"#,
            1.0,
            "9100 of n1.example.org",
        ),
        (
            r#"{{ if match "^n[0-9]+$" $labels.node }}yes{{ end }}"#,
            1.0,
            "yes",
        ),
        (
            "{{ graphLink \"up == 0\" }}",
            1.0,
            "/graph?g0.expr=up+%3D%3D+0&g0.tab=0",
        ),
        ("{{ tableLink \"up\" }}", 1.0, "/graph?g0.expr=up&g0.tab=1"),
        (
            "{{ slice \"abc\" 1 }}{{ html \"<\" }}{{ urlquery \"a b\" }}",
            1.0,
            "bc&lt;a+b",
        ),
    ]);
}

#[test]
fn branches_are_taken() {
    check(&[
        (
            "{{ if gt $value 90.0 }}hot{{ else if gt $value 50.0 }}warm{{ else }}cold{{ end }}",
            91.0,
            "hot",
        ),
        (
            "{{ if gt $value 90.0 }}hot{{ else if gt $value 50.0 }}warm{{ else }}cold{{ end }}",
            51.0,
            "warm",
        ),
        (
            "{{ if gt $value 90.0 }}hot{{ else if gt $value 50.0 }}warm{{ else }}cold{{ end }}",
            1.0,
            "cold",
        ),
        (
            "{{ if and (eq $labels.gpu \"1\" \"3\") (not (eq $labels.node \"n2\")) }}a{{ end }}",
            1.0,
            "a",
        ),
        ("{{ if or $labels.none $labels.gpu }}b{{ end }}", 1.0, "b"),
        ("{{ or $labels.none \"nobody\" }}", 1.0, "nobody"),
        (
            "{{ if and false (first (query \"none\")) }}a{{ else }}short{{ end }}",
            1.0,
            "short",
        ),
        (
            "{{ le 1 1 }} {{ lt 1 1 }} {{ ge \"b\" \"a\" }} {{ ne 1 2 }}",
            1.0,
            "true false true true",
        ),
        (
            "{{ with $labels.gpu }}GPU {{ . }}{{ else }}no GPU{{ end }}",
            1.0,
            "GPU 3",
        ),
        (
            "{{ with $labels.none }}GPU {{ . }}{{ else }}no GPU{{ end }}",
            1.0,
            "no GPU",
        ),
        ("{{ with $x := $labels.gpu }}{{ $x }}{{ end }}", 1.0, "3"),
        (
            "{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}",
            1.0,
            "2",
        ),
        (
            "{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}",
            1.0,
            "21",
        ),
    ]);
}

#[test]
fn queries_are_evaluated() {
    check(&[
        (
            "{{ with query \"up\" }}{{ . | first | value | humanizePercentage }}{{ end }}",
            1.0,
            "100%",
        ),
        (
            "{{ range query \"up\" | sortByLabel \"node\" }}{{ .Labels.node }}={{ .Value }} {{ end }}",
            1.0,
            "a=0.5 b=1 ",
        ),
        (
            "{{ range $i, $s := query \"up\" }}{{ $i }}{{ label \"node\" $s }}{{ end }}",
            1.0,
            "0b1a",
        ),
        (
            "{{ range query \"none\" }}x{{ else }}nothing{{ end }}",
            1.0,
            "nothing",
        ),
        ("{{ (query \"up\" | first).Labels.node }}", 1.0, "b"),
        ("{{ printf \"%s\" \"up\" | query | len }}", 1.0, "2"),
        (
            "{{ range query \"up\" }}{{ break }}{{ end }}{{ range query \"up\" }}{{ continue }}x{{ end }}.",
            1.0,
            ".",
        ),
        ("{{ query \"up\" | first | strvalue }}.", 1.0, "."),
        (
            "{{ with args 1 \"b\" }}{{ .arg0 }}{{ .arg1 }}{{ end }}",
            1.0,
            "1b",
        ),
    ]);
}

#[test]
fn space_is_trimmed_and_comments_are_left_out() {
    check(&[
        ("a \n {{- $value -}} \n b", 1.0, "a1b"),
        ("a {{/* nothing */}} b", 1.0, "a  b"),
        ("a {{- /* nothing */ -}} b", 1.0, "ab"),
        ("{{- if true -}} x {{- end }}", 1.0, "x"),
        ("{{-3}}", 1.0, "-3"),
        ("{{ \"}}\" }}", 1.0, "}}"),
    ]);
}

#[test]
fn what_is_not_the_language_is_refused_when_it_is_read() {
    for (text, expected) in [
        ("{{ $value", "unclosed action"),
        ("{{ $lables.gpu }}", "undefined variable \"$lables\""),
        ("{{ $value | shout }}", "function \"shout\" not defined"),
        ("{{ if $value }}", "unexpected EOF"),
        ("{{ end }}", "unexpected {{end}}"),
        ("{{ else }}", "unexpected {{else}}"),
        ("{{ if }}x{{ end }}", "missing value"),
        ("{{ ( $value }}", "unclosed left paren"),
        ("{{ $value ) }}", "unexpected"),
        ("{{ \"a }}", "unterminated quoted string"),
        ("{{ define \"x\" }}{{ end }}", "\"define\" is not supported"),
        ("{{ break }}", "outside"),
        ("{{ $x = 1 }}", "undefined variable \"$x\""),
        ("{{ 1 | 2 }}", "non-executable"),
        (
            "{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}",
            "undefined variable \"$x\"",
        ),
        ("{{ 1x }}", "bad number syntax"),
        ("{{ ~ }}", "unexpected"),
    ] {
        let error = expanded(text, 1.0).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn what_does_not_fit_is_told_when_it_is_filled_in() {
    for (text, expected) in [
        (
            "{{ gt $value 90 }}",
            "error calling gt: incompatible types for comparison",
        ),
        (
            "{{ first (query \"none\") }}",
            "first() called on vector with no elements",
        ),
        ("{{ query \"bad\" }}", "error calling query: invalid query: bad"),
        (
            "{{ humanize \"x\" }}",
            "error calling humanize: strconv.ParseFloat",
        ),
        (
            "{{ match \"(\" \"a\" }}",
            "error calling match: error parsing regexp",
        ),
        ("{{ .Nope }}", "can't evaluate field Nope"),
        ("{{ $value.x }}", "can't evaluate field x in type float64"),
        ("{{ $value 1 }}", "can't give argument to non-function"),
        ("{{ toUpper 1 }}", "expected string; got int"),
        ("{{ range $value }}{{ end }}", "range can't iterate over 1"),
    ] {
        let error = expanded(text, 1.0).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn work_and_text_are_bounded() {
    let deep = format!("{}{}", "{{ if true }}".repeat(40), "{{ end }}".repeat(40));
    let brackets = format!("{{{{ {}1{} }}}}", "(".repeat(40), ")".repeat(40));
    let loops = "{{ range 9999 }}{{ range 9999 }}{{ range 9999 }}{{ end }}{{ end }}{{ end }}";
    let long = "{{ range 9999 }}0123456789{{ end }}";
    let doubling = format!(
        "{{{{ $x := \"0123456789\" }}}}{}",
        "{{ $x = print $x $x }}".repeat(40)
    );
    let wide = "{{ printf \"%1000000000d\" 1 }}";
    let replaced = format!(
        "{{{{ reReplaceAll \"\" \"{}\" \"{}\" }}}}",
        "x".repeat(10_000),
        "y".repeat(10_000)
    );
    for text in [&deep, &brackets, loops, long, &doubling, wide, &replaced] {
        assert!(expanded(text, 1.0).is_err(), "{}", &text[..40]);
    }
    let error = Template::parse(&"x".repeat(TEXT_BYTES_MAX + 1)).expect_err("too long");
    assert!(matches!(error, TemplateError::TooLong(_)));
}

/// For any input, parsing and expanding return a text or an error.
mod hostile {
    use proptest::prelude::*;

    const PARTS: [&str; 40] = [
        "{{",
        "}}",
        "{{-",
        "-}}",
        " ",
        "\n",
        "$labels",
        "$value",
        "$x",
        ":=",
        "=",
        "|",
        "(",
        ")",
        ".",
        ",",
        ".gpu",
        "if",
        "else",
        "end",
        "range",
        "with",
        "break",
        "query",
        "\"up\"",
        "printf",
        "\"%5.1f%d%s%*d\"",
        "first",
        "slice",
        "\"é\"",
        "-1",
        "0x1F",
        "1e309",
        "'a'",
        "`",
        "/*",
        "*/",
        "humanize",
        "toTime",
        "reReplaceAll",
    ];

    proptest! {
        #[test]
        fn nothing_panics(picks in prop::collection::vec(0..PARTS.len(), 0..40), value in prop::num::f64::ANY) {
            let text: String = picks.iter().flat_map(|&at| [PARTS[at], " "]).collect();
            let _text_or_error = super::expanded(&text, value);
            let _text_or_error = super::expanded(&format!("{{{{ {} }}}}", text.replace("}}", "").replace("{{", "")), value);
        }

        #[test]
        fn no_number_panics(value in prop::num::f64::ANY) {
            let all = "{{ humanize $value }}{{ humanize1024 $value }}{{ humanizeDuration $value }}{{ humanizePercentage $value }}\
                       {{ humanizeTimestamp $value }}{{ $value | toDuration }}{{ printf \"%g %e %.3f %8.2g\" $value $value $value $value }}";
            let _text_or_error = super::expanded(all, value);
        }
    }
}
