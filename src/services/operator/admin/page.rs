//! The page at `/`: its files, which are a part of this program, and the head that lets it load nothing else.
//!
//! The page shows the metrics of `live`. Its charts are by uPlot 1.6.32, with the licence MIT
//! (`page/uPlot.LICENSE.txt`). This module reads no metrics.

use axum::Router;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::Response;
use axum::routing::get;

/// The page runs its own scripts and shows its own styles and images. It asks this server alone, and no other page may
/// have it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files: their paths, their types and their bytes.
const FILES: [(&str, &str, &[u8]); 10] = [
    ("/", "text/html; charset=utf-8", include_bytes!("page/index.html")),
    ("/page/page.css", "text/css; charset=utf-8", include_bytes!("page/page.css")),
    ("/page/figures.js", "text/javascript; charset=utf-8", include_bytes!("page/figures.js")),
    ("/page/charts.js", "text/javascript; charset=utf-8", include_bytes!("page/charts.js")),
    ("/page/queues.js", "text/javascript; charset=utf-8", include_bytes!("page/queues.js")),
    ("/page/page.js", "text/javascript; charset=utf-8", include_bytes!("page/page.js")),
    ("/page/icon.svg", "image/svg+xml", include_bytes!("page/icon.svg")),
    ("/page/uPlot.iife.min.js", "text/javascript; charset=utf-8", include_bytes!("page/uPlot.iife.min.js")),
    ("/page/uPlot.min.css", "text/css; charset=utf-8", include_bytes!("page/uPlot.min.css")),
    ("/page/uPlot.LICENSE.txt", "text/plain; charset=utf-8", include_bytes!("page/uPlot.LICENSE.txt")),
];

/// Adds the files to the paths of the service.
pub(super) fn with_page<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    FILES.into_iter().fold(routes, |routes, (path, content_type, bytes)| {
        routes.route(path, get(move || async move { file(content_type, bytes) }))
    })
}

fn file(content_type: &'static str, bytes: &'static [u8]) -> Response {
    let mut response = Response::new(Body::from(bytes));
    let heads = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The server that comes back after an upgrade has other files.
        (CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in heads {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
