//! The program of `crates/client/examples/shop.rs`, which takes its limits from the operator without an agent.

use super::*;

/// A running shop, and its ports.
struct Shop {
    program: Program,
    listen: String,
    control: String,
}

impl Shop {
    fn command(control: &str, options: &[(&str, String)]) -> Result<Command> {
        let mut command = Command::new(program("examples/shop")?);
        command.env("SHOP_LISTEN", "127.0.0.1:0").env("WEIR_CONTROL", control);
        command.envs(options.iter().map(|(name, value)| (name, value)));
        command.kill_on_drop(true).stdout(Stdio::piped()).stdin(Stdio::null());
        Ok(command)
    }

    async fn start(options: &[(&str, String)]) -> Result<Self> {
        let mut program = Program::start(Self::command("127.0.0.1:0", options)?)?;
        let mut lines = BufReader::new(program.0.stdout.take().context("the output is not piped")?).lines();
        let line = timeout(PATIENCE, lines.next_line()).await??.context("the shop has ended")?;
        let ports = line.strip_prefix("listening on ").and_then(|rest| rest.split_once(", control port "));
        let (listen, control) = ports.with_context(|| line.clone())?;
        Ok(Self { program, listen: listen.to_owned(), control: control.to_owned() })
    }

    /// Starts a shop with a certificate. It accepts operators of these authorities.
    async fn identified(folder: &Path, own: &Identity, operators: &Authority) -> Result<Self> {
        own.write(folder)?;
        fs::write(folder.join("ca.crt"), operators.pem())?;
        let at = |name: &str| folder.join(name).display().to_string();
        let options = [
            ("WEIR_CONTROL_CERT", at("tls.crt")),
            ("WEIR_CONTROL_KEY", at("tls.key")),
            ("WEIR_CONTROL_CLIENT_CA", at("ca.crt")),
        ];
        Self::start(&options).await
    }

    /// Sends this number of requests. Returns the number of admitted ones.
    async fn passes(&self, requests: u32) -> Result<u32> {
        admitted(&self.listen, &get("/checkout"), "200", requests).await
    }

    /// Waits until the metric has this value.
    async fn until_metric(&self, series: &str, wanted: u64) -> Result<()> {
        let is_so = async || Ok(metric(&self.listen, series).await.ok() == Some(wanted));
        until(&format!("{series} {wanted}"), is_so).await
    }
}

const OPERATOR_UP: &str = "weir_store_up{store=\"operator\"}";

/// Both programs count as pods, and have one limit together. Without the operator, each has its share.
#[tokio::test]
async fn programs_with_the_library_have_one_limit_together_and_a_share_without_the_operator() -> Result<()> {
    let _cores = CORES.read().await;
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let (authority, operators) = (Authority::new()?, Authority::new()?);
    let mut shops = Vec::new();
    for name in ["one", "two"] {
        shops.push(Shop::identified(&at(name), &authority.issue("127.0.0.1", DAY)?, &operators).await?);
    }
    let files = OperatorFiles::write(&at("operator"), &authority, &operators.issue("operator.test", DAY)?)?;
    let stage = Stage { folder: tempfile::tempdir()?, name: "limits" };
    stage.write_rule("scope: Fleet, limits: [{name: day, requests: 30, per: 24h, strategy: SlidingWindowLog}]")?;
    let urls: Vec<String> = shops.iter().map(|shop| format!("https://{}", shop.control)).collect();
    let operator = Operator::start(&stage, &urls, &files.args())?;
    stage.until("2/2", |it| enforced(it) == "2/2").await?;
    for shop in &shops {
        shop.until_metric(OPERATOR_UP, 1).await?;
    }
    ensure!(shops[0].passes(22).await? == 22, "one program has less than the limit");
    let passed = shops[1].passes(12).await? + shops[0].passes(5).await?;
    ensure!(passed == 8, "{passed} of the other 8 were admitted");

    stage.write_rule("scope: Fleet, limits: [{name: day, requests: 45, per: 24h, strategy: SlidingWindowLog}]")?;
    stage.until("the change", |it| it["status"]["observedGeneration"] == 2 && enforced(it) == "2/2").await?;
    let passed = shops[0].passes(10).await? + shops[1].passes(10).await?;
    ensure!(passed == 15, "{passed} instead of 15 more were admitted");

    // Without the operator, each of the two programs has half of the limit.
    stage.write_rule(
        "scope: Fleet, limits: [{name: second, requests: 40, per: 1s, strategy: TokenBucket, burst: 40}]",
    )?;
    stage.until("the rate", |it| it["status"]["observedGeneration"] == 3 && enforced(it) == "2/2").await?;
    operator.program.kill().await?;
    for shop in &shops {
        shop.until_metric(OPERATOR_UP, 0).await?;
    }
    let start = Instant::now();
    let mut passed = 0;
    while start.elapsed() < Duration::from_secs(2) {
        passed += shops[0].passes(1).await?;
    }
    let possible = 20.0 * start.elapsed().as_secs_f64() + 1.0;
    ensure!(passed > 0, "the program has no share");
    ensure!(f64::from(passed) <= possible, "{passed} were admitted, and the share allows {possible}");
    Ok(())
}

/// The manual page `docs/guides/library-client.md` shows this. SIGTERM ends the program.
#[tokio::test]
async fn a_program_with_the_library_is_limited_over_plain_http_on_loopback() -> Result<()> {
    build_programs().await?;
    let mut shop = Shop::start(&[("WEIR_WAIT_FOR_CONFIG", "false".to_owned())]).await?;
    let stage = Stage { folder: tempfile::tempdir()?, name: "limits" };
    stage.write_rule("limits: [{name: day, requests: 3, per: 24h, strategy: SlidingWindowLog}]")?;
    let operator = Operator::start(&stage, &[format!("http://{}", shop.control)], &[])?;
    stage.until("1/1", |it| enforced(it) == "1/1").await?;
    ensure!(shop.passes(5).await? == 3, "the limit is not in force");
    stage.write_rule("limits: [{name: day, requests: 5, per: 24h, strategy: SlidingWindowLog}]")?;
    stage.until("the change", |it| it["status"]["observedGeneration"] == 2 && enforced(it) == "1/1").await?;
    ensure!(shop.passes(5).await? == 2, "three of five were used");
    let health = ask(&shop.listen, "/healthz").await?;
    ensure!(health.starts_with("HTTP/1.1 200"), "a route without the layer is limited: {health}");
    // The policy counts messages of WebSocket, which a layer cannot do.
    stage.write_rule("per: Message, limits: [{name: day, requests: 9, per: 24h, strategy: SlidingWindowLog}]")?;
    let is_told = |it: &Value| {
        let drifted = it["status"]["enforcement"]["drifted"].as_array().and_then(|drifted| drifted.first());
        drifted.is_some_and(|pod| pod["reason"] == "Refused" && pod["message"].to_string().contains("a layer cannot"))
    };
    stage.until("the refusal", is_told).await?;
    ensure!(shop.passes(2).await? == 0, "the last good limit is not in force");

    shop.program.signal(Signal::TERM)?;
    ensure!(timeout(PATIENCE, shop.program.0.wait()).await??.success(), "the shop ended with an error");
    operator.program.kill().await
}

#[tokio::test]
async fn a_program_with_wrong_options_does_not_start() -> Result<()> {
    build_programs().await?;
    let shop = Shop::start(&[]).await?;
    for (control, options, words) in [
        ("here", vec![], "'--control <ADDR>'"),
        (shop.control.as_str(), vec![], "cannot listen on --control"),
        ("127.0.0.1:0", vec![("WEIR_CONTROL_CERT", "/nowhere/tls.crt".to_owned())], "--control-key"),
        ("127.0.0.1:0", vec![("WEIR_BOOTSTRAP", "/nowhere".to_owned())], "--bootstrap /nowhere: cannot be read"),
        ("0.0.0.0:0", vec![], "is reachable from beyond loopback"),
    ] {
        let output = Shop::command(control, &options)?.stderr(Stdio::piped()).output();
        let output = timeout(PATIENCE, output).await??;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && told.contains(words), "{told:?} does not contain {words:?}");
    }
    Ok(())
}
