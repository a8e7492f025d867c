//! Roles, by every way to authenticate.

use domain::api::session::{Role, Session};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{ADMIN, Agent, Server, answer, code, config, is_problem, until};

const ROLES: [Role; 5] = [
    Role::Viewer,
    Role::Operator,
    Role::Admin,
    Role::Scrape,
    Role::Join,
];

/// Method, path, and the required role. The paths name things that do not exist, so that no request changes anything.
const ROUTES: [(&str, &str, Role); 41] = [
    ("GET", "/metrics", Role::Scrape),
    ("GET", "/api/session", Role::Viewer),
    ("GET", "/api/nodes", Role::Viewer),
    ("GET", "/api/gpus", Role::Viewer),
    ("GET", "/api/events", Role::Viewer),
    ("GET", "/api/runs", Role::Viewer),
    ("POST", "/api/runs/check", Role::Viewer),
    ("GET", "/api/runs/none", Role::Viewer),
    ("GET", "/api/runs/none/actions", Role::Viewer),
    ("GET", "/api/runs/none/memory", Role::Viewer),
    ("GET", "/api/runs/none/trace/lanes", Role::Viewer),
    ("POST", "/api/runs/none/stop", Role::Operator),
    ("GET", "/api/runs/none/knobs", Role::Viewer),
    ("POST", "/api/runs/none/preview", Role::Operator),
    ("POST", "/api/runs/none/exclude", Role::Operator),
    ("GET", "/api/rules", Role::Viewer),
    ("GET", "/api/alerts", Role::Viewer),
    ("GET", "/api/diagnoses", Role::Viewer),
    ("GET", "/api/diagnoses/none", Role::Viewer),
    ("POST", "/api/diagnoses/none/acknowledge", Role::Operator),
    ("POST", "/api/diagnoses/none/note", Role::Operator),
    ("POST", "/api/diagnoses/none/act", Role::Operator),
    ("POST", "/api/diagnoses/none/silence", Role::Operator),
    ("GET", "/api/silences", Role::Viewer),
    ("POST", "/api/silences", Role::Operator),
    ("DELETE", "/api/silences/none", Role::Operator),
    ("GET", "/api/stream", Role::Viewer),
    ("GET", "/api/webhooks", Role::Admin),
    ("DELETE", "/api/webhooks/none", Role::Admin),
    ("GET", "/api/tokens", Role::Admin),
    ("DELETE", "/api/tokens/none", Role::Admin),
    ("GET", "/api/audit", Role::Admin),
    ("GET", "/api/v1/query", Role::Viewer),
    ("POST", "/api/v1/query_range", Role::Viewer),
    ("GET", "/api/v1/series", Role::Viewer),
    ("GET", "/api/v1/labels", Role::Viewer),
    ("GET", "/api/v1/label/job/values", Role::Viewer),
    ("GET", "/api/v1/metadata", Role::Viewer),
    ("GET", "/api/v1/rules", Role::Viewer),
    ("POST", "/api/v1/write", Role::Operator),
    ("POST", "/api/nothing", Role::Admin),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_route_accepts_its_roles_only() {
    let server = Server::start().await;
    let mut tokens = vec![];
    for role in ROLES {
        tokens.push((role, server.token(role, None).await.token));
    }
    for (method, path, needed) in ROUTES {
        let method: Method = method.parse().unwrap();
        let (status, body) = answer(server.anonymous(method.clone(), path)).await;
        assert_eq!(
            status,
            StatusCode::UNAUTHORIZED,
            "{method} {path} without a token: {body}"
        );
        for (role, token) in &tokens {
            let status = server
                .anonymous(method.clone(), path)
                .bearer_auth(token)
                .send()
                .await
                .unwrap()
                .status();
            let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            assert_eq!(
                refused,
                !role.allows(needed),
                "{method} {path} as {role:?}: {status}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_dashboard_need_no_token() {
    let server = Server::start().await;
    for path in ["/-/healthy", "/-/ready", "/"] {
        assert_eq!(
            server.anonymous(Method::GET, path).send().await.unwrap().status(),
            StatusCode::OK,
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_form_of_their_path() {
    let server = Server::start().await;
    let (status, body) = answer(server.anonymous(Method::GET, "/api/nodes")).await;
    assert!(is_problem(&body, status), "{body}");
    let (_, body) = answer(server.anonymous(Method::GET, "/api/v1/query?query=up")).await;
    assert_eq!(
        (&body["status"], &body["errorType"]),
        (&json!("error"), &json!("unauthorized")),
        "{body}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_logs_in_changes_and_logs_out() {
    let server = Server::start().await;
    let response = server
        .anonymous(Method::POST, "/api/session")
        .json(&json!({ "token": ADMIN }))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains("Secure"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let session: Session = response.json().await.unwrap();
    assert_eq!(session.role, Role::Admin);

    let by_cookie = |method: Method, path: &str| server.anonymous(method, path).header("cookie", &cookie);
    let (status, body) = answer(by_cookie(Method::GET, "/api/session")).await;
    assert_eq!((status, &body["csrf"]), (StatusCode::OK, &json!(session.csrf)));

    // Reading needs no CSRF token, changing does.
    let join = |csrf: Option<&str>| {
        let request = by_cookie(Method::POST, "/api/tokens/join");
        csrf.map_or(request.try_clone().unwrap(), |csrf| {
            request.header("x-csrf-token", csrf)
        })
    };
    assert_eq!(join(None).send().await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(
        join(Some("guess")).send().await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        join(Some(&session.csrf)).send().await.unwrap().status(),
        StatusCode::CREATED
    );
    let foreign = join(Some(&session.csrf)).header("origin", "http://evil.example");
    assert_eq!(foreign.send().await.unwrap().status(), StatusCode::FORBIDDEN);

    // The session survives a restart of the collector, and ends at log-out.
    let server = server.restart().await;
    let by_cookie = |method: Method| server.anonymous(method, "/api/session").header("cookie", &cookie);
    assert_eq!(
        by_cookie(Method::GET).send().await.unwrap().status(),
        StatusCode::OK
    );
    let out = by_cookie(Method::DELETE)
        .header("x-csrf-token", &session.csrf)
        .send()
        .await
        .unwrap();
    assert_eq!(out.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        by_cookie(Method::GET).send().await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_log_ins_are_slowed_down_and_a_valid_token_always_logs_in() {
    let server = Server::start().await;
    let log_in = |token: &str| {
        server
            .anonymous(Method::POST, "/api/session")
            .json(&json!({ "token": token }))
    };
    for _ in 0..10 {
        assert_eq!(
            log_in("guess").send().await.unwrap().status(),
            StatusCode::UNAUTHORIZED
        );
    }
    let response = log_in("guess").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait_s: u32 = response.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&wait_s), "{wait_s}");
    assert_eq!(log_in(ADMIN).send().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn scrape_and_join_tokens_do_not_open_the_dashboard() {
    let server = Server::start().await;
    for role in [Role::Scrape, Role::Join] {
        let token = server.token(role, None).await.token;
        let response = server
            .anonymous(Method::POST, "/api/session")
            .json(&json!({ "token": token }))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{role:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_at_once_with_its_sessions() {
    let server = Server::start().await;
    let viewer = server.token(Role::Viewer, None).await;
    let logged_in = server
        .anonymous(Method::POST, "/api/session")
        .json(&json!({ "token": viewer.token }))
        .send()
        .await
        .unwrap();
    let cookie = logged_in.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let revoked = server
        .request(Method::DELETE, &format!("/api/tokens/{}", viewer.id))
        .send()
        .await
        .unwrap();
    assert_eq!(revoked.status(), StatusCode::NO_CONTENT);
    let by_token = server
        .anonymous(Method::GET, "/api/nodes")
        .bearer_auth(&viewer.token)
        .send()
        .await
        .unwrap();
    let by_cookie = server
        .anonymous(Method::GET, "/api/nodes")
        .header("cookie", cookie)
        .send()
        .await
        .unwrap();
    assert_eq!(
        (by_token.status(), by_cookie.status()),
        (StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED)
    );

    let (_, audit) = server.get("/api/audit").await;
    let whats: Vec<_> = audit
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["what"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(whats, ["token_revoke", "log_in", "token_create"]);
    assert_eq!(audit[0]["who"], "admin");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admins_own_token_cannot_be_revoked_and_no_list_shows_a_secret() {
    let server = Server::start().await;
    assert_eq!(
        server
            .request(Method::DELETE, "/api/tokens/admin")
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::CONFLICT
    );
    let viewer = server.token(Role::Viewer, None).await;
    let (_, list) = server.get("/api/tokens").await;
    let text = list.to_string();
    assert!(
        text.contains(&viewer.id) && !text.contains(&viewer.token) && !text.contains(ADMIN),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_expires() {
    let server = Server::start().await;
    let (status, join) = answer(server.request(Method::POST, "/api/tokens/join")).await;
    assert_eq!(status, StatusCode::CREATED);
    let lifetime_ms = join["expires_ms"].as_i64().unwrap() - collector::clock::now_ms();
    assert!(
        (3_500_000..=3_600_000).contains(&lifetime_ms),
        "an hour by default, not {lifetime_ms} ms"
    );

    let (_, short) = server.post("/api/tokens/join", json!({ "expires_s": 1 })).await;
    let short = short["token"].as_str().unwrap().to_owned();
    until("the token to expire", async || {
        let outcome = code(Agent::connect(&server, &short, "n1").await);
        (outcome == tonic::Code::Unauthenticated).then_some(())
    })
    .await;
    let (status, _) = server.post("/api/tokens/join", json!({ "expires_s": 0 })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

/// Regression: after 110 requests with invalid tokens, a new valid token got 429.
#[tokio::test(flavor = "multi_thread")]
async fn bad_tokens_from_an_address_never_lock_out_a_valid_one() {
    let server = Server::start().await;
    let get = async |token: &str| {
        let request = server.anonymous(Method::GET, "/api/session").bearer_auth(token);
        request.send().await.unwrap().status()
    };
    for n in 0..110 {
        let expected = if n < 100 {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        let status = get(&format!("bad-{n}")).await;
        // One more is allowed for each 0.6 s that the loop takes.
        assert!(
            status == expected || n >= 100 && status == StatusCode::UNAUTHORIZED,
            "{n}: {status}"
        );
    }
    let fresh = server.token(Role::Viewer, None).await;
    assert_eq!(get(&fresh.token).await, StatusCode::OK, "a fresh token");
    assert_eq!(get(ADMIN).await, StatusCode::OK);
    // The same holds for cookies.
    let cookies = async |cookie: &str| {
        let request = server.anonymous(Method::GET, "/api/session");
        request.header("cookie", cookie).send().await.unwrap()
    };
    assert!(matches!(
        cookies("lockstep_session=guess").await.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::UNAUTHORIZED
    ));
    let revoked = server.request(Method::DELETE, &format!("/api/tokens/{}", fresh.id));
    assert_eq!(revoked.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_ne!(get(&fresh.token).await, StatusCode::OK, "it is revoked");
}

/// Behind a proxy, each client has its own limit. Only a trusted proxy determines the client's address.
#[tokio::test(flavor = "multi_thread")]
async fn limits_count_the_address_that_a_trusted_proxy_forwards() {
    for (proxies, others_status) in [
        (vec!["127.0.0.0/8".parse().unwrap()], StatusCode::UNAUTHORIZED),
        (vec![], StatusCode::TOO_MANY_REQUESTS),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = collector::Config {
            trusted_proxies: proxies,
            ..config(folder.path())
        };
        let server = Server::start_with(folder, config).await;
        let log_in = async |client: &str| {
            let request = server
                .anonymous(Method::POST, "/api/session")
                .header("x-forwarded-for", client);
            request
                .json(&json!({ "token": "guess" }))
                .send()
                .await
                .unwrap()
                .status()
        };
        for _ in 0..10 {
            assert_eq!(log_in("203.0.113.1").await, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(
            log_in("198.51.100.1, 203.0.113.1").await,
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(log_in("203.0.113.2").await, others_status);
    }
}

/// The form of `http://any:TOKEN@…` in requests of Grafana, promtool and Prometheus itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_may_be_a_password_where_prometheus_clients_ask() {
    let server = Server::start().await;
    let [viewer, scrape] = [
        server.token(Role::Viewer, None).await.token,
        server.token(Role::Scrape, None).await.token,
    ];
    let as_password = async |method: Method, path: &str, token: &str, origin: Option<&str>| {
        let mut request = server.anonymous(method, path).basic_auth("anyone", Some(token));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send().await.unwrap().status()
    };
    let (get, post) = (Method::GET, Method::POST);
    let query = "/api/v1/query?query=1";
    for (method, path, token, origin, status) in [
        (&get, query, &*viewer, None, StatusCode::OK),
        (&post, query, &viewer, None, StatusCode::OK),
        (
            &post,
            query,
            &viewer,
            Some("http://evil.example"),
            StatusCode::FORBIDDEN,
        ),
        (&get, query, &scrape, None, StatusCode::FORBIDDEN),
        (&get, query, "guess", None, StatusCode::UNAUTHORIZED),
        (&get, "/metrics", &scrape, None, StatusCode::OK),
        (&post, "/api/v1/write", &viewer, None, StatusCode::FORBIDDEN),
        // On other paths a password is not accepted.
        (&get, "/api/runs", &viewer, None, StatusCode::UNAUTHORIZED),
        (&get, "/api/tokens", ADMIN, None, StatusCode::UNAUTHORIZED),
    ] {
        let got = as_password(method.clone(), path, token, origin).await;
        assert_eq!(got, status, "{method} {path} {origin:?}");
    }
}
