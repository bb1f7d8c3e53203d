//! A real Chromium without a window, driven over WebDriver (W3C) by its chromedriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::admin::awaited;
use crate::harness::{Guarded, real_peer};

/// What chromedriver prints before its port.
const STARTED: &str = "started successfully on port ";

/// Starts the driver. Returns its port, unless it ends without one: while another test has very many connections, it
/// may find no free port. It then says why.
fn started(driver: &Path) -> Option<(u16, Guarded)> {
    let mut command = Command::new(driver);
    command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut driver = Guarded(command.spawn().unwrap());
    let mut lines = BufReader::new(driver.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    let port = lines.find_map(|line| {
        let number = line.split_once(STARTED).and_then(|(_, number)| number.trim_end_matches('.').parse().ok());
        said.push(line);
        number
    });
    let Some(port) = port else {
        eprintln!("chromedriver has no port: {said:?}");
        return None;
    };
    // It is read to its end, or the driver would wait for a reader.
    std::thread::spawn(move || lines.for_each(drop));
    Some((port, driver))
}

/// A browser with one page.
pub(crate) struct Browser {
    port: u16,
    session: String,
    _driver: Guarded,
}

impl Browser {
    /// Starts one, or returns `None` if this machine has none.
    pub(crate) fn start() -> Option<Self> {
        let (chromium, driver) = (real_peer("chromium")?, real_peer("chromedriver")?);
        let (port, driver) = awaited("the driver", || started(&driver));
        let mut browser = Self { port, session: String::new(), _driver: driver };
        let arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"];
        let asked = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "binary": chromium, "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = browser.ask("POST", "/session", &asked);
        browser.session = format!("/session/{}", answer["sessionId"].as_str().unwrap());
        Some(browser)
    }

    /// The value of the reply to a command.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        // The driver keeps the connection open, whatever it is asked for.
        let (mut reader, mut length) = (BufReader::new(stream), 0);
        loop {
            let mut line = String::new();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "{path}: the driver is gone");
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(bytes) = line.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(answer["value"]["error"].is_null(), "{path}: {answer}");
        answer["value"].clone()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    /// Opens a page.
    pub(crate) fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// Opens a page in a further tab, which the later commands are for.
    pub(crate) fn open_tab(&self, url: &str) {
        let tab = self.command("/window/new", &json!({ "type": "tab" }));
        self.command("/window", &json!({ "handle": tab["handle"] }));
        self.open(url);
    }

    /// Sets the property by which the page learns that it is hidden, or shown again.
    pub(crate) fn hide(&self, is_hidden: bool) {
        let property =
            format!("Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }})");
        self.value(&format!("[{property}, document.dispatchEvent(new Event('visibilitychange'))].length"));
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&self, expression: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": format!("return {expression}"), "args": [] }))
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&self, expression: &str) {
        awaited(expression, || (self.value(expression) == true).then_some(()));
    }

    /// Shows the page on a screen of this size, light or dark.
    pub(crate) fn look(&self, (width, height): (u32, u32), scheme: &str) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// A picture of the whole page, as PNG in base64.
    pub(crate) fn picture(&self) -> String {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        self.devtools("Page.captureScreenshot", &whole)["data"].as_str().unwrap().to_owned()
    }

    /// The errors that the page has caused since the last call.
    pub(crate) fn errors(&self) -> Vec<String> {
        let entries = self.command("/se/log", &json!({ "type": "browser" }));
        let errors = entries.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        errors.map(|entry| entry["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, and then the driver. Of a test that has failed, the driver ends it when it is killed.
        if !std::thread::panicking() {
            self.ask("DELETE", &self.session, &Value::Null);
        }
    }
}
