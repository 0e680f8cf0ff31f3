//! `apportion token mint`: signs a token and prints it alone on one line.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret;

use crate::domain::ids::{TenantId, UserId};
use crate::service::access::keys::MintRequest;
use crate::service::{Scopes, ServiceError};
use crate::startup;

use super::input::parse_seconds;
use super::{Common, Usage, say};

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Sign a token with a key of this installation
    Mint(MintArgs),
}

#[derive(Debug, Args)]
pub struct MintArgs {
    /// Whose token: a tenant's
    #[arg(long, value_name = "ID", value_parser = TenantId::parse, required_unless_present = "operator")]
    tenant: Option<TenantId>,
    /// Whose token: an operator's, for /v1/operator/*
    #[arg(long, conflicts_with_all = ["tenant", "user"])]
    operator: bool,
    /// What it may do, space-separated: check quota admin:read admin:write
    /// [default: me with --user, operator with --operator]
    #[arg(long, value_parser = Scopes::parse)]
    scope: Option<Scopes>,
    /// The one user it speaks for (scope me)
    #[arg(long, value_parser = UserId::parse)]
    user: Option<UserId>,
    /// How long it is good: 90s, 30m, 1h, 7d
    #[arg(long, default_value = "1h", value_parser = parse_seconds)]
    ttl: u64,
}

pub fn run(common: &Common, command: TokenCommand) -> anyhow::Result<ExitCode> {
    let TokenCommand::Mint(args) = command;
    let scopes = match (args.scope, args.operator, &args.user) {
        (Some(scopes), ..) => scopes,
        (None, true, _) => Scopes::OPERATOR,
        (None, false, Some(_)) => Scopes::ME,
        (None, false, None) => {
            return Err(Usage("--scope is missing, such as --scope \"check quota\"".into()).into());
        }
    };
    let request = MintRequest { scopes, user: args.user, ttl_seconds: args.ttl as u32 };
    let config = common.load(None)?;
    super::runtime()?.block_on(async {
        let data = startup::open_existing(&config).await?;
        let minted = async {
            let tenant = match &args.tenant {
                Some(id) => Some(data.registry.tenant(id).await?),
                None => None,
            };
            data.registry.mint_token(tenant.as_ref(), &request).await
        };
        let minted = minted.await;
        data.ledger.close().await;
        let token = minted.map_err(explain)?;
        say(token.expose_secret())?;
        Ok(ExitCode::SUCCESS)
    })
}

/// What the request lacks is a fault of the call (exit code 2).
fn explain(error: ServiceError) -> anyhow::Error {
    match error {
        ServiceError::Invalid(faults) => {
            let told = faults
                .iter()
                .map(|fault| format!("--{} {}", fault.pointer.trim_start_matches('/'), fault.message));
            Usage(told.collect::<Vec<_>>().join("; ")).into()
        }
        other => other.into(),
    }
}
