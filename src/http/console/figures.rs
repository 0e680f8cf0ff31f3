//! Figures and times as people read them. The exact figure or instant always stands behind what is
//! shown.

use std::fmt;
use std::sync::Arc;

use askama::filters::HtmlSafe;
use serde::Deserialize;

use crate::domain::time::{Millis, Zone};
use crate::http::query::percent_encode;

/// Markup made here, of figures and times alone: nothing in it was written by others.
pub struct Markup(String);

impl fmt::Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Markup {}

/// Text as it may stand in markup and in its attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// What somebody else named a user: any text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct UserName(pub String);

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<bdi>{}</bdi>", escape(&self.0))
    }
}

impl HtmlSafe for UserName {}

impl UserName {
    /// The user's page.
    pub fn page(&self) -> String {
        format!("/console/users/{}", percent_encode(&self.0))
    }

    pub fn link(&self) -> Markup {
        Markup(format!("<a href=\"{}\">{self}</a>", self.page()))
    }
}

impl Markup {
    /// Of what was drawn here.
    pub(super) fn made(text: String) -> Self {
        Self(text)
    }
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// With a comma at every third digit.
pub fn full(figure: u64) -> String {
    let digits = figure.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and how large: `1.23 M`. Up to 9,999 exact; never more than there is, so that
/// what is left is never shown as all of it.
pub fn short(figure: u64) -> String {
    if figure < 10_000 {
        return full(figure);
    }
    let units = ["k", "M", "G", "T", "P"];
    let (mut size, mut unit) = (1000, 0);
    while figure / size >= 1000 && unit + 1 < units.len() {
        size *= 1000;
        unit += 1;
    }
    let (whole, rest) = (figure / size, figure % size);
    let unit = units[unit];
    match whole {
        0..=9 => format!("{whole}.{:02}\u{a0}{unit}", rest / (size / 100)),
        10..=99 => format!("{whole}.{}\u{a0}{unit}", rest / (size / 10)),
        _ => format!("{whole}\u{a0}{unit}"),
    }
}

/// What a field for a local time says, as if it were one in UTC.
pub fn wall_time(field: &str) -> Option<Millis> {
    let seconds = if field.len() == 16 { ":00" } else { "" };
    Millis::parse(&format!("{field}{seconds}Z")).ok()
}

/// In full, as text: of a meter of which credits are counted in millionths.
pub fn amount(value: u64, meter: &str) -> String {
    if meter != "credits" {
        return full(value);
    }
    let text = format!("{}.{:06}", full(value / 1_000_000), value % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A figure: written short, and in full for who wants to know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, exact) = (short(self.0), full(self.0));
        match shown == exact {
            true => f.write_str(&shown),
            false => write!(f, "<data value=\"{}\" title=\"{exact}\">{shown}</data>", self.0),
        }
    }
}

impl HtmlSafe for Count {}

impl Count {
    /// Of a meter: credits are counted in millionths.
    pub fn of(&self, meter: &str) -> Markup {
        match meter {
            "credits" => Markup(Credits(self.0).to_string()),
            _ => Markup(self.to_string()),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// What part of `whole` it is, at most all of it.
    pub fn part_of(&self, whole: &Self) -> Part {
        Part(if whole.0 == 0 { 0.0 } else { (self.0 as f64 / whole.0 as f64).min(1.0) })
    }
}

/// Credits, of which figures are millionths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Credits(pub u64);

impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millionths = self.0;
        let shown = match millionths {
            0 => "0".into(),
            _ if millionths >= 10_000_000_000 => short(millionths / 1_000_000),
            _ if millionths < 1_000_000 => format!("0.{:04}", millionths / 100),
            _ => format!("{}.{:02}", full(millionths / 1_000_000), millionths % 1_000_000 / 10_000),
        };
        write!(f, "<data value=\"{millionths}\" title=\"{} millionths\">{shown}</data>", full(millionths))
    }
}

impl HtmlSafe for Credits {}

/// A part of one, as a percentage.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Deserialize)]
#[serde(transparent)]
pub struct Part(pub f64);

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 * 100.0 {
            0.0 => f.write_str("0\u{a0}%"),
            p if p < 0.1 => f.write_str("&lt;\u{a0}0.1\u{a0}%"),
            p if p < 9.95 => write!(f, "{p:.1}\u{a0}%"),
            p => write!(f, "{p:.0}\u{a0}%"),
        }
    }
}

impl HtmlSafe for Part {}

impl Part {
    /// A bar of that part of the width there is. It says nothing that does not stand beside it.
    pub fn bar(&self) -> Markup {
        bar(&[("fill", self.0)])
    }

    /// The same where reaching the end is not well.
    pub fn usage_bar(&self) -> Markup {
        let class = match self.0 {
            part if part >= 1.0 => "over",
            part if part >= 0.8 => "near",
            _ => "fill",
        };
        bar(&[(class, self.0)])
    }
}

/// Pieces of one width, one after the other, each of a class and a part of the whole.
pub fn bar(pieces: &[(&str, f64)]) -> Markup {
    let mut text = String::from(
        "<svg class=\"bar\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"6\"/>",
    );
    let mut x = 0.0;
    for (class, part) in pieces {
        let width = (part.max(0.0) * 100.0).min(100.0 - x);
        text.push_str(&format!("<rect class=\"{class}\" x=\"{x:.2}\" width=\"{width:.2}\" height=\"6\"/>"));
        x += width;
    }
    text.push_str("</svg>");
    Markup(text)
}

/// An instant, however it is held.
pub trait Instant {
    fn instant(&self) -> Millis;
}

impl Instant for Millis {
    fn instant(&self) -> Millis {
        *self
    }
}

impl<T: Instant> Instant for &T {
    fn instant(&self) -> Millis {
        (**self).instant()
    }
}

/// Shows times in one zone, as seen now.
pub struct Clock {
    pub zone: Arc<Zone>,
    pub now: Millis,
}

impl Clock {
    /// An instant: today's without the day, this year's without the year.
    pub fn at(&self, at: impl Instant) -> Markup {
        let at = at.instant();
        let (local, now) = (Wall::of(&self.zone, at), Wall::of(&self.zone, self.now));
        let time = &local.time[..5];
        let shown = match (local.date == now.date, local.year == now.year) {
            (true, _) => time.to_owned(),
            (_, true) => format!("{} {}, {time}", local.day, local.month),
            _ => format!("{} {} {}, {time}", local.day, local.month, local.year),
        };
        self.time(&at, &local, &shown)
    }

    /// The same with the seconds.
    pub fn exact(&self, at: impl Instant) -> Markup {
        let at = at.instant();
        let local = Wall::of(&self.zone, at);
        let shown = format!("{} {} {}, {}", local.day, local.month, local.year, local.time);
        self.time(&at, &local, &shown)
    }

    /// How long until then, or since.
    pub fn away(&self, at: impl Instant) -> Markup {
        let at = at.instant();
        let ms = at.0 - self.now.0;
        let span = span(ms.abs());
        let shown = match ms.signum() {
            0 => "now".into(),
            1 => format!("in {span}"),
            _ => format!("{span} ago"),
        };
        self.time(&at, &Wall::of(&self.zone, at), &shown)
    }

    /// Hours and minutes, for axes.
    pub fn hour(&self, at: Millis) -> String {
        Wall::of(&self.zone, at).time[..5].to_owned()
    }

    /// The local date, as fields of forms want it.
    pub fn date(&self, at: Millis) -> String {
        Wall::of(&self.zone, at).date
    }

    /// A local date and time, as fields of forms have it.
    pub fn field(&self, at: Millis) -> String {
        let local = Wall::of(&self.zone, at);
        format!("{}T{}", local.date, local.time)
    }

    /// The instant at which a wall clock shows what such a field holds. Of a time that comes twice
    /// it is one of both; a time that is skipped is as long after the jump.
    pub fn moment(&self, field: &str) -> Option<Millis> {
        let shown = wall_time(field)?;
        let behind = |at: Millis| self.zone.wall_clock(at).0 - at.0;
        let near = shown.plus_ms(-behind(shown));
        Some(shown.plus_ms(-behind(near)))
    }

    fn time(&self, at: &Millis, local: &Wall, shown: &str) -> Markup {
        let zone = self.zone.name();
        let title = format!("{} {} {}, {} {zone}", local.day, local.month, local.year, local.time);
        Markup(format!("<time datetime=\"{at}\" title=\"{title}\">{shown}</time>"))
    }
}

/// What a wall clock and a calendar show.
struct Wall {
    date: String,
    year: String,
    month: &'static str,
    day: String,
    time: String,
}

impl Wall {
    fn of(zone: &Zone, at: Millis) -> Self {
        // `2026-11-30T14:59:59.999Z`, of which all is ASCII.
        let text = zone.wall_clock(at).to_string();
        let month: usize = text[5..7].parse().unwrap_or(1);
        Self {
            date: text[..10].into(),
            year: text[..4].into(),
            month: MONTHS.get(month.wrapping_sub(1)).copied().unwrap_or_default(),
            day: text[8..10].trim_start_matches('0').into(),
            time: text[11..19].into(),
        }
    }
}

/// A length of time in its two largest units.
pub fn span(ms: i64) -> String {
    match ms {
        ms if ms < 1000 => format!("{ms}\u{a0}ms"),
        ms if ms < MINUTE_MS => format!("{}\u{a0}s", ms / 1000),
        ms if ms < HOUR_MS => format!("{}\u{a0}min", ms / MINUTE_MS),
        ms if ms < DAY_MS => two(ms / HOUR_MS, "h", ms % HOUR_MS / MINUTE_MS, "min"),
        ms => two(ms / DAY_MS, if ms < 2 * DAY_MS { "day" } else { "days" }, ms % DAY_MS / HOUR_MS, "h"),
    }
}

fn two(first: i64, unit: &str, second: i64, smaller: &str) -> String {
    match second {
        0 => format!("{first}\u{a0}{unit}"),
        _ => format!("{first}\u{a0}{unit} {second}\u{a0}{smaller}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_the_full_one_stands_behind() {
        let shown = |n: u64| short(n).replace('\u{a0}', " ");
        assert_eq!(full(1_234_567), "1,234,567");
        assert_eq!(
            (shown(9_999), shown(10_000), shown(12_345)),
            ("9,999".into(), "10.0 k".into(), "12.3 k".into())
        );
        assert_eq!((shown(999_999), shown(1_000_000)), ("999 k".into(), "1.00 M".into()));
        assert_eq!((shown(1_234_567), shown((1 << 53) - 1)), ("1.23 M".into(), "9.00 P".into()));
        assert_eq!(Count(7).to_string(), "7");
        assert!(Count(1_234_567).to_string().contains("title=\"1,234,567\""));
        assert!(Credits(1_234_567).to_string().ends_with(">1.23</data>"));
    }

    #[test]
    fn names_are_text_whatever_stands_in_them() {
        let name = UserName("<script>'\"&/?".into());
        let shown = name.link().to_string();
        assert_eq!(
            shown,
            "<a href=\"/console/users/%3Cscript%3E%27%22%26%2F%3F\"><bdi>&lt;script&gt;&#39;&quot;&amp;/?</bdi></a>"
        );
    }

    #[test]
    fn parts_are_percentages() {
        let shown = [0.0, 0.0004, 0.0123, 0.5, 1.2].map(|part| Part(part).to_string().replace('\u{a0}', " "));
        assert_eq!(shown, ["0 %", "&lt; 0.1 %", "1.2 %", "50 %", "120 %"]);
        let bar = bar(&[("held", f64::NAN), ("fill", 0.7), ("over", 2.0)]).to_string();
        assert!(
            bar.contains("x=\"0.00\" width=\"70.00\"") && bar.contains("x=\"70.00\" width=\"30.00\""),
            "{bar}"
        );
    }

    #[test]
    fn a_field_of_a_form_is_a_local_time() {
        let now = Millis::parse("2026-11-30T12:00:00Z").unwrap();
        for (zone, field, instant) in [
            ("Asia/Tokyo", "2026-12-01T09:30", "2026-12-01T00:30:00.000Z"),
            ("America/New_York", "2026-07-01T00:00:15", "2026-07-01T04:00:15.000Z"),
            ("Europe/Berlin", "2026-10-25T04:00", "2026-10-25T03:00:00.000Z"),
            ("Europe/Berlin", "2026-03-29T03:00", "2026-03-29T01:00:00.000Z"),
        ] {
            let clock = Clock { zone: Zone::parse(zone).unwrap(), now };
            let at = clock.moment(field).unwrap();
            assert_eq!(at.to_string(), instant);
            assert!(clock.field(at).starts_with(field), "{}", clock.field(at));
        }
        assert_eq!(Clock { zone: Zone::utc(), now }.moment("soon"), None);
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let at = |text: &str| Millis::parse(text).unwrap();
        let clock = Clock { zone: Zone::parse("Asia/Tokyo").unwrap(), now: at("2026-11-30T12:00:00Z") };
        assert!(clock.at(at("2026-11-30T00:05:00Z")).to_string().ends_with(">09:05</time>"));
        assert!(clock.at(at("2026-11-30T15:00:00Z")).to_string().ends_with(">1 Dec, 00:00</time>"));
        assert!(clock.at(at("2026-12-31T15:00:00Z")).to_string().ends_with(">1 Jan 2027, 00:00</time>"));
        assert!(
            clock.away(at("2026-12-02T15:30:00Z")).to_string().ends_with(">in 2\u{a0}days 3\u{a0}h</time>")
        );
        assert!(clock.away(at("2026-11-30T11:59:30Z")).to_string().contains(">30\u{a0}s ago<"));
    }
}
