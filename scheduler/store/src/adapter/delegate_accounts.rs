//! Lists the methods of the port of accounts, for adapters.

/// As [`with_store_methods`](crate::with_store_methods), with all methods of [`Accounts`](crate::Accounts).
#[macro_export]
macro_rules! with_accounts_methods {
    ($implement:ident) => {
        $implement! {
            read has_users() -> bool: "look for users";
            write create_user(user: &NewUser, by: &Actor) -> UserId: "create a user";
            write create_first_user(user: &NewUser, by: &Actor) -> UserId: "create the first user";
            write change_user(name: &str, change: &UserChange, by: &Actor) -> ChangedUser: "change a user";
            write delete_user_if(name: &str, condition: &Precondition, by: &Actor) -> (): "delete a user";
            read user(name: &str) -> StoredUser: "read a user";
            read user_by_subject(issuer: &str, subject: &str) -> Option<StoredUser>: "find a user";
            read users(after: Option<&str>, limit: usize) -> Vec<StoredUser>: "list users";
            write create_session(user: UserId, login: &Login, hash: SecretHash, valid_ms: u64, by: &Actor) -> (): "start a session";
            read session(hash: SecretHash, idle_ms: u64) -> Option<Principal>: "find a session";
            write end_session(hash: SecretHash, by: &Actor) -> (): "end a session";
            write create_api_token(token: &NewApiToken, by: &Actor) -> (): "create an API token";
            read api_token(hash: SecretHash, openid_valid_ms: u64) -> Option<Principal>: "find an API token";
            read api_tokens(owner: Option<UserId>, after: Option<&str>, limit: usize) -> Vec<StoredApiToken>: "list API tokens";
            write revoke_api_token(id: &str, owner: Option<UserId>, by: &Actor) -> bool: "revoke an API token";
        }
    };
}
