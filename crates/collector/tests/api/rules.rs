//! Rules of users: recording, alerting, reloading.

use std::path::Path;
use std::time::Instant;

use domain::api::session::Role;
use domain::series::STALE;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN, DEADLINE, Server, answer, config};
use crate::remote_write::{push, series};

const RULES: &str = "
groups:
  - name: power
    interval: 100ms
    limit: 2
    labels: { team: infra }
    rules:
      - record: node:power:sum
        expr: sum by (node) (power)
        labels: { kind: sum }
      - record: power:total
        expr: sum(node:power:sum)
      - alert: PowerHigh
        expr: node:power:sum > 100
        labels: { severity: warning }
        annotations:
          summary: '{{ $labels.node }} draws {{ $value | printf \"%.1f\" }} of {{ with query \"power:total\" }}{{ . | first | value }}{{ end }}'
      - alert: PowerDrawn
        expr: node:power:sum > 0
        for: 1h
      - alert: PowerKnown
        expr: power > 0
        for: 1h
      - record: power:each
        expr: power
  - name: broken
    interval: 100ms
    rules:
      - record: power:clash
        expr: label_replace(power, 'gpu', '', '', '')
";

/// Two rules with one name, one whose alerts stay pending, and one that records a series under a name of alerts.
const LEVELS: &str = "
groups:
  - name: levels
    interval: 100ms
    rules:
      - alert: PowerHigh
        expr: power > 100
        labels: { severity: warning }
      - alert: PowerHigh
        expr: power > 1000
        labels: { severity: critical }
      - alert: PowerKnown
        expr: power >= 0
        for: 1h
      - record: PowerHigh
        expr: max(power)
";

/// A collector with one rule file, and no other rules.
pub(crate) async fn started(text: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), text);
    let mut config = config(folder.path());
    config.rules = vec![folder.path().join("*.rules").display().to_string()];
    config.shipped_rules = false;
    Server::start_with(folder, config).await
}

fn write(folder: &Path, text: &str) {
    std::fs::write(folder.join("a.rules"), text).unwrap();
}

/// Writes the current values of three GPUs on two nodes.
pub(crate) async fn feed(server: &Server, values: [f64; 3]) {
    let now_ms = collector::clock::now_ms();
    let gpus = [("n1", "0"), ("n1", "1"), ("n2", "0")];
    let all: Vec<_> = gpus
        .iter()
        .zip(values)
        .map(|((node, gpu), value)| {
            let labels = [("__name__", "power"), ("gpu", *gpu), ("node", *node)];
            series(&labels, &[(now_ms, value)])
        })
        .collect();
    assert_eq!(push(server, &all).await.0, StatusCode::NO_CONTENT);
}

/// Repeats a query until its result is as wanted.
pub(crate) async fn until(
    server: &Server,
    query: &str,
    wanted: impl Fn(&[(Value, String)]) -> bool,
) -> Vec<(Value, String)> {
    let began = Instant::now();
    loop {
        let answer = server.query(query, collector::clock::now_ms()).await;
        if wanted(&answer) {
            return answer;
        }
        assert!(began.elapsed() < DEADLINE, "{query}: {answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
}

async fn rule(server: &Server, name: &str) -> Value {
    let path = format!("/api/v1/rules?rule_name[]={name}");
    server.get(&path).await.1["data"]["groups"][0]["rules"][0].clone()
}

async fn rule_until(server: &Server, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let rule = rule(server, name).await;
        if wanted(&rule) {
            return rule;
        }
        assert!(began.elapsed() < DEADLINE, "{name}: {rule}");
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_series_are_there_and_end_with_their_source() {
    let server = started(RULES).await;
    feed(&server, [60.0, 50.0, 40.0]).await;
    let sums = until(&server, "node:power:sum", |answer| answer.len() == 2).await;
    let labels =
        |node: &str| json!({ "__name__": "node:power:sum", "kind": "sum", "node": node, "team": "infra" });
    assert_eq!(sums, [(labels("n1"), "110".into()), (labels("n2"), "40".into())]);
    // The second rule reads the samples that the first one has written in the same evaluation.
    until(&server, "power:total", |answer| {
        answer.first().is_some_and(|(_, value)| value == "150")
    })
    .await;
    let first = |name: &str| format!("ts_of_first_over_time({name}[1m])");
    let same_evaluation = format!(
        "{} == on () {}",
        first("power:total"),
        first("node:power:sum{node='n1'}")
    );
    until(&server, &same_evaluation, |answer| answer.len() == 1).await;

    feed(&server, [60.0, 50.0, STALE]).await;
    until(&server, "node:power:sum", |answer| answer.len() == 1).await;
    until(&server, "power:total", |answer| {
        answer.first().is_some_and(|(_, value)| value == "110")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_limits_are_shown_with_the_rule() {
    let server = started(RULES).await;
    feed(&server, [60.0, 50.0, 40.0]).await;
    let limited = rule_until(&server, "power:each", |rule| rule["health"] == "err").await;
    assert_eq!(limited["lastError"], "exceeded limit of 2 with 3 series");
    let clash = rule_until(&server, "power:clash", |rule| rule["health"] == "err").await;
    assert!(
        clash["lastError"].as_str().unwrap().contains("same labelset"),
        "{clash}"
    );
    rule_until(&server, "node:power:sum", |rule| rule["health"] == "ok").await;
    assert_eq!(server.query("power:each", collector::clock::now_ms()).await, []);

    let text = server
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let group = format!("{};power", server.folder.path().join("a.rules").display());
    for name in [
        "lockstep_rule_evaluation_failures_total",
        "lockstep_rule_group_iterations_total",
        "lockstep_rule_group_last_duration_seconds",
    ] {
        assert!(
            text.contains(&format!("{name}{{rule_group=\"{group}\"}}")),
            "{name}: {text}"
        );
    }
    let (_, groups) = server.get("/api/v1/rules?rule_group[]=power&type=record").await;
    let group = &groups["data"]["groups"][0];
    assert_eq!((&group["interval"], &group["limit"]), (&json!(0.1), &json!(2)));
    assert_eq!(group["rules"].as_array().unwrap().len(), 3);
    assert!(group["lastEvaluation"].as_str().unwrap() > "2020", "{group}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_write_their_series_and_expand_their_templates() {
    let server = started(RULES).await;
    feed(&server, [60.0, 50.0, 40.0]).await;
    let firing = until(&server, "ALERTS{alertstate='firing'}", |answer| {
        !answer.is_empty()
    })
    .await;
    let labels = json!({ "__name__": "ALERTS", "alertname": "PowerHigh", "alertstate": "firing", "kind": "sum", "node": "n1",
                         "severity": "warning", "team": "infra" });
    assert_eq!(firing, [(labels, "1".into())]);
    let since = until(&server, "ALERTS_FOR_STATE{alertname='PowerHigh'}", |answer| {
        !answer.is_empty()
    })
    .await;
    let since: f64 = since[0].1.parse().unwrap();
    assert!((collector::clock::now_ms() as f64 / 1_000.0 - since).abs() < 60.0);
    until(&server, "ALERTS{alertstate='pending'}", |answer| {
        answer.len() == 2
            && answer
                .iter()
                .all(|(labels, _)| labels["alertname"] == "PowerDrawn")
    })
    .await;
    let high = rule_until(&server, "PowerHigh", |rule| {
        rule["alerts"][0]["annotations"]["summary"] == "n1 draws 110.0 of 150"
    })
    .await;
    assert_eq!(high["state"], "firing");
    let known = rule(&server, "PowerKnown").await;
    assert_eq!(known["lastError"], "exceeded limit of 2 with 3 alerts");

    feed(&server, [0.0, 0.0, 0.0]).await;
    until(&server, "ALERTS", <[_]>::is_empty).await;
}

/// Returns `last_fired_ms` of each rule.
async fn last_fired(server: &Server) -> Value {
    let (_, rules) = server.get("/api/rules").await;
    let rules = rules.as_array().unwrap().iter();
    rules.map(|rule| rule["last_fired_ms"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_shows_when_one_of_its_alerts_last_fired() {
    let server = started(LEVELS).await;
    feed(&server, [150.0, 0.0, 0.0]).await;
    let firing = "ALERTS{alertstate='firing'}";
    until(&server, firing, |answer| answer.len() == 1).await;
    let (_, alerts) = server.get("/api/alerts").await;
    let fired_ms = alerts[0]["fired_ms"].clone();
    assert!(fired_ms.is_i64(), "{alerts}");
    assert_eq!(last_fired(&server).await, json!([fired_ms, null, null, null]));

    feed(&server, [0.0, 0.0, 0.0]).await;
    until(&server, firing, <[_]>::is_empty).await;
    assert_eq!(last_fired(&server).await, json!([fired_ms, null, null, null]));
    feed(&server, [1_500.0, 0.0, 0.0]).await;
    until(&server, firing, |answer| answer.len() == 2).await;
    let again = last_fired(&server).await;
    assert!(again[0].as_i64() > fired_ms.as_i64(), "{again}");
    assert!(again[1].as_i64() > fired_ms.as_i64(), "{again}");
    assert_eq!((&again[2], &again[3]), (&Value::Null, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_uses_all_rules_or_none_and_keeps_alerts() {
    let server = started(RULES).await;
    feed(&server, [60.0, 50.0, 40.0]).await;
    let before = rule_until(&server, "PowerHigh", |rule| rule["state"] == "firing").await;
    let reload = || answer(server.request(Method::POST, "/-/reload"));

    write(
        server.folder.path(),
        &RULES.replace("sum(node:power:sum)", "sum("),
    );
    let refused = server.request(Method::POST, "/-/reload").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let said = refused.text().await.unwrap();
    assert!(said.contains("rule 2") && said.contains("power:total"), "{said}");
    assert_eq!(rule(&server, "power:total").await["query"], "sum(node:power:sum)");

    // Another group, another threshold, one rule less: the alert that continues is the same one.
    let changed = RULES
        .replace("name: power", "name: energy")
        .replace("> 100", "> 90")
        .replace(
            "- record: power:total\n        expr: sum(node:power:sum)",
            "- record: power:max\n        expr: max(power)",
        );
    write(server.folder.path(), &changed);
    let response = server.request(Method::POST, "/-/reload").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let after = rule_until(&server, "PowerHigh", |rule| {
        rule["query"] == "node:power:sum > 90"
    })
    .await;
    assert_eq!(after["alerts"][0]["activeAt"], before["alerts"][0]["activeAt"]);
    until(&server, "power:total", <[_]>::is_empty).await;
    until(&server, "power:max", |answer| answer.len() == 1).await;

    // The rule is removed: its alert is resolved, and this is reported.
    write(server.folder.path(), "groups: []");
    assert_eq!(reload().await.0, StatusCode::OK);
    assert_eq!(server.get("/api/v1/alerts").await.1["data"]["alerts"], json!([]));
    let (_, history) = server.get("/api/alerts").await;
    assert_eq!(
        (&history[0]["rule"], &history[0]["state"]),
        (&json!("PowerHigh"), &json!("resolved"))
    );
    until(&server, "{__name__=~'ALERTS|node:.*|power:.*'}", <[_]>::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_admin_reads_rules_again() {
    let server = started(RULES).await;
    let operator = server.token(Role::Operator, None).await.token;
    for (token, status) in [
        (Some(operator.as_str()), StatusCode::FORBIDDEN),
        (None, StatusCode::UNAUTHORIZED),
        (Some(ADMIN), StatusCode::OK),
    ] {
        let request = server.anonymous(Method::POST, "/-/reload");
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        assert_eq!(request.send().await.unwrap().status(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_with_rules_that_cannot_be_used_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &RULES.replace("for: 1h", "for: ever"));
    let mut config = config(folder.path());
    config.rules = vec![folder.path().join("a.rules").display().to_string()];
    let refused = collector::start(config).await.err().unwrap();
    assert!(matches!(refused, collector::StartError::Setting(_)), "{refused}");
    let said = refused.to_string();
    for part in [
        "a.rules: group \"power\", rule 4, \"PowerDrawn\"",
        "\"ever\" is not a duration",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_rules_can_be_left_out() {
    let server = Server::start().await;
    let (_, with) = server.get("/api/v1/rules?file[]=lockstep/hardware.yaml").await;
    assert_eq!(with["data"]["groups"].as_array().unwrap().len(), 1);
    let server = started("").await;
    assert_eq!(server.get("/api/v1/rules").await.1["data"]["groups"], json!([]));
}
