use super::address::is_public;
use super::*;

fn target(text: &str) -> Target {
    Target::parse(text).unwrap()
}

#[test]
fn addresses_of_a_networks_own_are_not_public_however_they_are_wrapped() {
    let own = [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.168.1.1",
        "198.19.255.255",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ];
    for text in own {
        assert!(!is_public(text.parse().unwrap()), "{text}");
    }
    let public = [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
    ];
    for text in public {
        assert!(is_public(text.parse().unwrap()), "{text}");
    }
}

#[test]
fn a_target_is_an_http_url_without_credentials() {
    for good in ["https://hooks.example.com/a?b=c", "http://127.0.0.1:8080/", "https://[2606:4700::1]/x"] {
        assert_eq!(target(good).as_str(), good);
    }
    let long = format!("https://example.com/{}", "a".repeat(2_048));
    let bad = [
        "",
        "/hook",
        "example.com/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://",
        "javascript:alert(1)",
        &long,
    ];
    for bad in bad {
        assert!(Target::parse(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn an_address_that_is_not_public_is_not_called_in_whatever_form_it_is_written() {
    let courier = Courier::default();
    let forms = [
        "http://127.0.0.1:9/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/latest/meta-data",
        "http://localhost:9/",
    ];
    for form in forms {
        let headers = [("a", String::new()), ("b", String::new()), ("c", String::new())];
        let answer = courier.post(&target(form), Reach::Public, headers, "{}".into()).await;
        assert_eq!(answer, Err(Unsent::NotPublic), "{form}");
        assert!(!courier.is_public(&target(form)).await, "{form}");
    }
}
