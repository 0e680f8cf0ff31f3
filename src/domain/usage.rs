//! Usage as vendors report it, in our figures.
//!
//! Vendors count the same things apart or together: for OpenAI and Gemini what
//! was read from a cache is part of the input, for Anthropic it stands beside
//! it; thoughts are part of the output, for Gemini beside it. One table a
//! vendor says so, and one function reads by it. Audio and images are counted
//! in tokens like text, by every vendor. Fields that are in no table are
//! ignored: vendors add some every month.

use super::document::{Field, Reader};
use super::quantity::MAX_AMOUNT;

/// Whose report it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenAi,
    Anthropic,
    Gemini,
}

/// The words for it.
pub const FORMATS: [(&str, Format); 3] =
    [("openai", Format::OpenAi), ("anthropic", Format::Anthropic), ("gemini", Format::Gemini)];

/// What a call used. Cache reads and writes are part of the input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
}

/// Spellings of one figure; the largest that is there counts: some report one as zero beside
/// the other.
type Names = &'static [&'static str];

/// How a vendor counts.
struct Table {
    /// Parts of the input that are counted apart. The first must be there.
    input: &'static [Names],
    /// Parts of the output that are counted apart. One of them must be there,
    /// or the total.
    output: &'static [Names],
    /// Input and output together.
    total: Names,
    /// The object within which cache reads and writes stand.
    details: Names,
    cache_read: Names,
    cache_write: Names,
    /// The vendor's own spelling, and what without it tells that the report is another's:
    /// read as this one's it would count too little.
    own: &'static str,
    foreign: Names,
}

/// Chat completions, embeddings, responses, transcriptions and realtime.
static OPENAI: Table = Table {
    input: &[&["prompt_tokens", "input_tokens"]],
    output: &[&["completion_tokens", "output_tokens"]],
    total: &["total_tokens"],
    details: &["prompt_tokens_details", "input_tokens_details", "input_token_details"],
    cache_read: &["cached_tokens"],
    cache_write: &["cache_write_tokens"],
    // (With it, both are told: so do gateways that speak for another vendor.)
    own: "prompt_tokens",
    foreign: &["cache_read_input_tokens", "cache_creation_input_tokens"],
};

static ANTHROPIC: Table = Table {
    input: &[&["input_tokens"], &["cache_read_input_tokens"], &["cache_creation_input_tokens"]],
    output: &[&["output_tokens"]],
    total: &[],
    details: &[],
    cache_read: &["cache_read_input_tokens"],
    cache_write: &["cache_creation_input_tokens"],
    own: "",
    foreign: &["input_tokens_details"],
};

/// As it comes over the wire, or from the Python SDK. What is zero is left out.
static GEMINI: Table = Table {
    input: &[
        &["promptTokenCount", "prompt_token_count"],
        &["toolUsePromptTokenCount", "tool_use_prompt_token_count"],
    ],
    output: &[
        &["candidatesTokenCount", "candidates_token_count", "responseTokenCount", "response_token_count"],
        &["thoughtsTokenCount", "thoughts_token_count"],
    ],
    total: &["totalTokenCount", "total_token_count"],
    details: &[],
    cache_read: &["cachedContentTokenCount", "cached_content_token_count"],
    cache_write: &[],
    own: "",
    foreign: &[],
};

impl Format {
    /// Reads the vendor's object. `None`: a fault is noted at its place.
    pub fn read(self, usage: Field<'_, '_>) -> Option<Figures> {
        let table = match self {
            Self::OpenAi => &OPENAI,
            Self::Anthropic => &ANTHROPIC,
            Self::Gemini => &GEMINI,
        };
        usage.table(|fields| {
            ignore_others(fields);
            if let Some(name) = table.foreign.iter().find(|name| fields.has(name))
                && !fields.has(table.own)
            {
                fields.fault(name, "is of another vendor's report: see `usage_format`");
                return None;
            }
            let input_tokens = sum(fields, table.input);
            let output_tokens = sum(fields, table.output);
            let total = figure(fields, table.total);
            let (cache_read_tokens, cache_write_tokens) = read_cached(fields, table);
            if table.input.first().is_some_and(|names| !is_there(fields, names)) {
                return missing(fields, table.input);
            }
            let input_tokens = input_tokens?;
            let output_tokens = match output_tokens {
                Some(tokens) => tokens,
                // What was used is known all the same; without this either, it is not zero.
                None if total.is_some() => total?.saturating_sub(input_tokens),
                None => return missing(fields, table.output),
            };
            if cache_read_tokens > input_tokens {
                fields.fault_here("reports more tokens read from a cache than tokens of input");
            }
            // A vendor may count what it wrote before it rounds; no more is priced than there was.
            let cache_write_tokens = cache_write_tokens.min(input_tokens.saturating_sub(cache_read_tokens));
            Some(Figures { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens })
        })
    }
}

/// Marks every field as known.
fn ignore_others(fields: &mut Reader<'_, '_>) {
    for name in fields.names() {
        fields.skip(name);
    }
}

fn is_there(fields: &mut Reader<'_, '_>, names: Names) -> bool {
    names.iter().any(|name| fields.has(name))
}

fn figure(fields: &mut Reader<'_, '_>, names: Names) -> Option<u64> {
    let there: Vec<_> = names.iter().filter(|name| fields.has(name)).collect();
    let figures: Vec<_> = there.iter().map(|name| fields.optional(name).amount(MAX_AMOUNT)).collect();
    figures.into_iter().max().flatten()
}

/// All parts together; `None`: none of them is there.
fn sum(fields: &mut Reader<'_, '_>, parts: &[Names]) -> Option<u64> {
    let figures = parts.iter().filter_map(|names| figure(fields, names));
    let sum = figures.reduce(u64::saturating_add)?;
    if sum > MAX_AMOUNT {
        fields.fault_here(format!("reports more than {MAX_AMOUNT} tokens"));
    }
    Some(sum)
}

/// Cache reads and writes; what is not there is zero.
fn read_cached(fields: &mut Reader<'_, '_>, table: &Table) -> (u64, u64) {
    let read = |fields: &mut Reader<'_, '_>| {
        let cache_read = figure(fields, table.cache_read).unwrap_or(0);
        (cache_read, figure(fields, table.cache_write).unwrap_or(0))
    };
    if table.details.is_empty() {
        return read(fields);
    }
    let Some(name) = table.details.iter().find(|name| fields.has(name)) else { return (0, 0) };
    let cached = fields.optional(name).table(|details| {
        ignore_others(details);
        Some(read(details))
    });
    cached.unwrap_or((0, 0))
}

fn missing<T>(fields: &mut Reader<'_, '_>, parts: &[Names]) -> Option<T> {
    let names = parts.first().copied().unwrap_or_default();
    if let Some(name) = names.first() {
        let others: String = names[1..].iter().map(|other| format!(", or `{other}`")).collect();
        fields.fault(name, format!("is required{others}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::document::Node;

    fn read(format: Format, usage: &str) -> Result<[u64; 4], Vec<String>> {
        let body = format!(r#"{{"usage":{usage}}}"#);
        let node = Node::from_json(body.as_bytes()).unwrap();
        let figures = node.read(|fields| format.read(fields.required("usage")));
        let told = |fault: crate::domain::document::Fault| format!("{} {}", fault.pointer, fault.message);
        figures
            .map(|f| [f.input_tokens, f.output_tokens, f.cache_read_tokens, f.cache_write_tokens])
            .map_err(|faults| faults.into_iter().map(told).collect())
    }

    #[test]
    fn openai_counts_cached_and_reasoning_tokens_within() {
        let chat = r#"{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,
            "prompt_tokens_details":{"cached_tokens":1920,"cache_write_tokens":50,"audio_tokens":7},
            "completion_tokens_details":{"reasoning_tokens":192,"audio_tokens":0}}"#;
        assert_eq!(read(Format::OpenAi, chat), Ok([2006, 300, 1920, 50]));
        let responses = r#"{"input_tokens":36,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},
            "output_tokens":87,"output_tokens_details":{"reasoning_tokens":60},"total_tokens":123}"#;
        assert_eq!(read(Format::OpenAi, responses), Ok([36, 87, 4, 0]));
        let realtime = r#"{"total_tokens":253,"input_tokens":132,"output_tokens":121,
            "input_token_details":{"text_tokens":119,"audio_tokens":13,"cached_tokens":64,
            "cached_tokens_details":{"text_tokens":64,"audio_tokens":0}},
            "output_token_details":{"text_tokens":30,"audio_tokens":91}}"#;
        assert_eq!(read(Format::OpenAi, realtime), Ok([132, 121, 64, 0]));
        assert_eq!(read(Format::OpenAi, r#"{"prompt_tokens":8,"total_tokens":8}"#), Ok([8, 0, 0, 0]));
        let nothing =
            r#"{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10,"prompt_tokens_details":null}"#;
        assert_eq!(read(Format::OpenAi, nothing), Ok([8, 2, 0, 0]));
    }

    #[test]
    fn anthropic_counts_what_is_cached_beside_the_input() {
        let usage = r#"{"input_tokens":21,"cache_creation_input_tokens":188086,"cache_read_input_tokens":4000,
            "cache_creation":{"ephemeral_5m_input_tokens":188086,"ephemeral_1h_input_tokens":0},
            "output_tokens":393,"service_tier":"standard","server_tool_use":{"web_search_requests":1}}"#;
        assert_eq!(read(Format::Anthropic, usage), Ok([192_107, 393, 4000, 188_086]));
        let plain = r#"{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":null}"#;
        assert_eq!(read(Format::Anthropic, plain), Ok([10, 5, 0, 0]));
    }

    #[test]
    fn gemini_counts_thoughts_and_tools_apart_and_leaves_out_what_is_zero() {
        let usage = r#"{"promptTokenCount":500,"cachedContentTokenCount":400,"candidatesTokenCount":50,
            "thoughtsTokenCount":120,"toolUsePromptTokenCount":30,"totalTokenCount":700,
            "promptTokensDetails":[{"modality":"TEXT","tokenCount":500}],"trafficType":"ON_DEMAND"}"#;
        assert_eq!(read(Format::Gemini, usage), Ok([530, 170, 400, 0]));
        let blocked = r#"{"promptTokenCount":8,"totalTokenCount":8}"#;
        assert_eq!(read(Format::Gemini, blocked), Ok([8, 0, 0, 0]));
        let python =
            r#"{"prompt_token_count":9,"candidates_token_count":3,"cached_content_token_count":null}"#;
        assert_eq!(read(Format::Gemini, python), Ok([9, 3, 0, 0]));
    }

    #[test]
    fn what_is_missing_is_not_zero_and_faults_name_their_field() {
        let faults = |format, usage: &str| read(format, usage).unwrap_err();
        assert_eq!(faults(Format::OpenAi, "{}"), ["/usage/prompt_tokens is required, or `input_tokens`"]);
        let only_input = faults(Format::OpenAi, r#"{"prompt_tokens":5}"#);
        assert_eq!(only_input, ["/usage/completion_tokens is required, or `output_tokens`"]);
        let start = faults(Format::Anthropic, r#"{"output_tokens":5,"cache_read_input_tokens":7}"#);
        assert_eq!(start, ["/usage/input_tokens is required"]);
        assert_eq!(faults(Format::OpenAi, "null"), ["/usage is required"]);
        assert_eq!(faults(Format::Gemini, "[1]"), ["/usage must be an object"]);
        for bad in ["-1", "1.5", "\"5\"", "9007199254740992"] {
            let usage = format!(r#"{{"prompt_tokens":{bad},"completion_tokens":1}}"#);
            assert!(faults(Format::OpenAi, &usage)[0].starts_with("/usage/prompt_tokens must be"), "{bad}");
        }
        let nested = r#"{"input_tokens":5,"output_tokens":1,"input_tokens_details":{"cached_tokens":-1}}"#;
        assert!(faults(Format::OpenAi, nested)[0].starts_with("/usage/input_tokens_details/cached_tokens"));
        let twice = r#"{"input_tokens":5,"input_tokens":6,"output_tokens":1}"#;
        assert_eq!(faults(Format::Anthropic, twice), ["/usage/input_tokens is given more than once"]);
        let many = r#"{"input_tokens":9007199254740991,"cache_read_input_tokens":1,"output_tokens":1}"#;
        assert!(faults(Format::Anthropic, many)[0].starts_with("/usage reports more than"));
        let more = r#"{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":6}}"#;
        assert!(faults(Format::OpenAi, more)[0].starts_with("/usage reports more tokens read"));
    }

    #[test]
    fn a_report_under_another_vendors_name_is_refused() {
        let faults = |format, usage: &str| read(format, usage).unwrap_err().concat();
        let anthropic = r#"{"input_tokens": 21, "output_tokens": 5, "cache_read_input_tokens": 10318}"#;
        assert!(faults(Format::OpenAi, anthropic).contains("cache_read_input_tokens"), "{anthropic}");
        let openai =
            r#"{"input_tokens": 21, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 9}}"#;
        assert!(faults(Format::Anthropic, openai).contains("input_tokens_details"), "{openai}");
        // A gateway's, in OpenAI's form, of a call of Anthropic's.
        let gateway = r#"{"prompt_tokens": 90, "completion_tokens": 5, "cache_read_input_tokens": 60}"#;
        assert_eq!(read(Format::OpenAi, gateway).unwrap()[0], 90);
    }

    #[test]
    fn of_two_spellings_the_one_that_is_not_zero_counts() {
        let both =
            r#"{"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 100, "output_tokens": 50}"#;
        assert_eq!(read(Format::OpenAi, both).unwrap()[..2], [100, 50]);
    }

    #[test]
    fn no_more_is_written_to_a_cache_than_there_was() {
        let usage = r#"{"prompt_tokens":100,"completion_tokens":1,
            "prompt_tokens_details":{"cached_tokens":40,"cache_write_tokens":64}}"#;
        assert_eq!(read(Format::OpenAi, usage), Ok([100, 1, 40, 60]));
    }
}
